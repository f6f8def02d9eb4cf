// The forward of attention_tensor.cuh: FlashAttention-2 with 16 query rows per warp.
#pragma once

#include "witan/kernels/attention/cuda/attention_launch.cuh"
#include "witan/kernels/attention/cuda/attention_tensor.cuh"

namespace witan::kernels::cuda::tensor {

// A block has 4 warps and 64 query rows. The keys per tile are limited by the shared memory of two buffers of keys and
// values.
template <int D>
struct ForwardTile {
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kRows = 16 * kWarps;
  static constexpr int kKeys = D <= 128 ? 64 : 32;
  static constexpr int kQueryElements = kRows * kStride<D>, kKeyElements = kKeys * kStride<D>;
  static constexpr int kBytes = (kQueryElements + 4 * kKeyElements) * static_cast<int>(sizeof(uint16_t));
};

// Turns scores into p = exp2(s - top), and updates top and sum, in units of log2, of a lane's first kHalves rows. What
// is summed so far has to be multiplied by `rescale`.
template <int N, int kHalves = 2>
__device__ __forceinline__ void softmax_scores(Sums<N>& s, float (&top)[2], float (&sum)[2], float (&rescale)[2]) {
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    float largest = top[half];
#pragma unroll
    for (int n = 0; n < N / 8; ++n) largest = fmaxf(largest, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    largest = row_max(largest);
    const float base = largest == -INFINITY ? 0.f : largest;  // no key seen yet
    rescale[half] = exp2_fast(top[half] - base);
    float added = 0;
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) added += s[n][e] = exp2_fast(s[n][e] - base);
    top[half] = largest;
    sum[half] = fmaf(sum[half], rescale[half], added);  // over this lane's columns; lanes are summed at the end
  }
}

template <int D, int kHalves = 2>
__device__ __forceinline__ void rescale_rows(Sums<D>& out, const float (&rescale)[2]) {
#pragma unroll
  for (int n = 0; n < D / 8; ++n)
#pragma unroll
    for (int e = 0; e < 2 * kHalves; ++e) out[n][e] *= rescale[e / 2];
}

// The same, with `out` as what is summed so far.
template <int N, int D, int kHalves = 2>
__device__ __forceinline__ void softmax_step(Sums<N>& s, Sums<D>& out, float (&top)[2], float (&sum)[2]) {
  float rescale[2];
  softmax_scores<N, kHalves>(s, top, sum, rescale);
  rescale_rows<D, kHalves>(out, rescale);
}

template <int D, class T>
__device__ __forceinline__ void finish(const AttentionCall<T>& call, int64_t group, const WarpRows& rows,
                                       const Sums<D>& out, const float (&top)[2], const float (&sum)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = row_sum(sum[half]);
    if (rows.row[half] > rows.last_row) continue;
    const float factor = total == 0 ? 0.f : 1 / total;  // 0: no key was seen
    store_row<D>(call.y + call.heads.query(group, rows.row[half], call.heads.hd_v), out, half, factor, 0,
                 call.heads.hd_v, call.packed);
    if (call.lse && threadIdx.x % 4 == 0)
      call.lse[call.heads.lse(group, rows.row[half])] = log_of_row(top[half], total);
  }
}

template <class T, int D, bool kDropout>
__global__ void __launch_bounds__(ForwardTile<D>::kThreads)
    forward_kernel(const AttentionCall<T> call, int64_t groups, int tiles) {
  using F = ForwardTile<D>;
  extern __shared__ __align__(16) unsigned char memory[];
  T *const q = reinterpret_cast<T*>(memory), *const buffers = q + F::kQueryElements;

  const BlockTask task = block_task(call, groups, tiles, true);
  const int64_t group = task.group;
  const int32_t* key_ids = call.key_ids_of(group);
  const WarpRows rows(call.heads, call.ids_of(group), task.tile, F::kRows);
  const Tiles tiles_of_keys{key_ids, call.by_document, F::kKeys, rows.keys};
  DropoutMask mask{};
  int64_t mask_row[2]{};
  if constexpr (kDropout) {
    mask = call.dropout.mask();
    mask_rows(mask_row, call, group, rows);
  }

  const auto load = [&](int key, int buffer) {
    T* k = buffers + buffer * 2 * F::kKeyElements;
    load_keys<D, F::kKeys, F::kThreads>(k, call, call.k, call.heads.hd, group, key, rows.keys);
    load_keys<D, F::kKeys, F::kThreads>(k + F::kKeyElements, call, call.v, call.heads.hd_v, group, key, rows.keys);
  };
  load_queries<D, F::kRows, F::kThreads>(q, call, call.q, call.heads.hd, group, rows.first_row);
  int key = tiles_of_keys.next(tiles_of_keys.begin_of(rows.first_key), rows.ids);
  Pipeline pipeline(load, key, rows.keys);

  const T* my_q = q + threadIdx.x / 32 * 16 * kStride<D>;
  const float scale = call.scale * kLog2e;
  Sums<D> out;
  clear<D>(out);
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  while (key < rows.keys) {
    const int end = tiles_of_keys.end_of(key), following = tiles_of_keys.next(tiles_of_keys.after(key), rows.ids);
    const T* k = buffers + pipeline.next(following) * 2 * F::kKeyElements;
    if (rows.busy()) {
      Sums<F::kKeys> s;
      clear<F::kKeys>(s);
      add_scores<F::kKeys, D>(s, my_q, k);
      scale_scores<F::kKeys>(s, scale);
      hide<F::kKeys>(s, rows, key_ids, key, end);
      softmax_step<F::kKeys, D>(s, out, top, sum);
      if constexpr (kDropout) drop<F::kKeys>(s, mask, mask_row, call.heads.keys, key);
      add_product<D, F::kKeys, D>(out, s, k + F::kKeyElements);
    }
    key = following;
  }
  finish<D>(call, group, rows, out, top, sum);
}

template <class T>
void launch_forward(Stream& stream, const AttentionCall<T>& call) {
  if (widest_head(call) > kMostTensorHead) return launch_wide_forward(stream, call);
  dispatch_tile<kMostTensorHead>(call, [&]<int D, bool kDropout>() {
    using F = ForwardTile<D>;
    launch_tiles(stream, forward_kernel<T, D, kDropout>, call, call.heads.groups(), tiles_of(call.heads.rows, F::kRows),
                 F::kThreads, F::kBytes);
  });
}

}  // namespace witan::kernels::cuda::tensor
