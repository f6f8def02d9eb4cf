// Attention of single tokens to latents (nn/attention/latent.h) on the tensor cores, for bfloat16 and float16: 16 of a
// token's heads are the rows of a tile of scores. A block reads each latent once, for its scores and for its sums.
// Warps divide the keys of a tile between them to compute scores, which they share, and the latent's channels to add up
// sums.
#pragma once

#include <cuda_fp8.h>

#include "witan/kernels/attention/cuda/attention_tensor_forward.cuh"
#include "witan/kernels/attention/cuda/cached_call.cuh"
#include "witan/kernels/common/cuda/early_launch.cuh"

namespace witan::kernels::cuda::latents {

constexpr int kRows = 16, kKeys = 32, kWarps = 4, kThreads = 32 * kWarps, kBlocksPerProcessor = 2;
constexpr int kTurning = 64;        // the most channels of a rotary key
constexpr int kScores = kKeys + 4;  // elements between rows of scores in shared memory

// Latents of up to D channels, which the rotary key's channels follow, in queries and in keys.
template <int D>
struct LatentTile {
  static constexpr int kWidth = D + kTurning, kChannels = D / kWarps;
  static constexpr int kQueryElements = kRows * tensor::kStride<kWidth>, kKeyElements = kKeys * tensor::kStride<kWidth>;
  static constexpr int kBytes = (kQueryElements + 2 * kKeyElements) * static_cast<int>(sizeof(uint16_t)) +
                                kRows * kScores * static_cast<int>(sizeof(float));
};

// Copies 8 numbers of a row of `width`, from channel d on, to shared memory; zeros beyond the row, or without a row.
template <class T>
__device__ __forceinline__ void load_eight(T* to, const T* row, int d, int width, const T* any) {
  const bool wanted = row != nullptr && d < width;
  copy_async(to, wanted ? row + d : any, wanted);
}

__device__ __forceinline__ float2 unpack_codes(uint32_t pair) {
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  return __half22float2(__half2(halves));
}

// Reads e4m3 codes and multiplies each by `scale`.
template <class T>
__device__ __forceinline__ void load_eight(T* to, const __nv_fp8_e4m3* row, int d, int width, float scale) {
  uint2 codes = make_uint2(0, 0);
  if (row != nullptr && d < width) codes = *reinterpret_cast<const uint2*>(row + d);
  const auto pair = [&](uint32_t two) {
    const float2 numbers = unpack_codes(two & 0xffffu);
    return pack_pair<T>(numbers.x * scale, numbers.y * scale);
  };
  *reinterpret_cast<uint4*>(to) = make_uint4(pair(codes.x), pair(codes.x >> 16), pair(codes.y), pair(codes.y >> 16));
}

// Copies the keys first .. first + kKeys - 1 that are below `end` to a tile, whose other rows become zeros.
template <int D, class T, class C>
__device__ __forceinline__ void load_keys(T* to, const CachedCall<T, C>& call, int64_t cache_row, int first, int end) {
  using F = LatentTile<D>;
  constexpr int kPacks = F::kWidth / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kKeys * kPacks; i += kThreads) {
    const int r = i / kPacks, d = i % kPacks * 8, at = first + r;
    const int64_t slot = cache_row * call.slots + at % call.slots;
    const bool seen = at < end, value = d < D;
    const C* const row = !seen ? nullptr : value ? call.values + slot * call.hd_v : call.keys + slot * call.hd;
    T* const place = to + r * tensor::kStride<F::kWidth> + d;
    const int column = value ? d : d - D, width = value ? call.hd_v : call.hd;
    if constexpr (std::is_same_v<T, C>)
      load_eight(place, row, column, width, call.q);
    else
      load_eight(place, row, column, width, !seen ? 0.f : (value ? call.value_scales : call.key_scales)[slot]);
  }
}

// The queries of the block's heads.
template <int D, class T, class C>
__device__ __forceinline__ void load_queries(T* to, const CachedCall<T, C>& call, int64_t head, int heads) {
  using F = LatentTile<D>;
  constexpr int kPacks = F::kWidth / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kPacks; i += kThreads) {
    const int r = i / kPacks, d = i % kPacks * 8;
    const bool value = d < D;
    const T* const row = r >= heads ? nullptr
                         : value    ? call.value_q + (head + r) * call.hd_v
                                    : call.q + (head + r) * call.hd;
    load_eight(to + r * tensor::kStride<F::kWidth> + d, row, value ? d : d - D, value ? call.hd_v : call.hd, call.q);
  }
}

// Scores of the block's heads with the warp's 8 keys, to shared memory.
template <int D, class T>
__device__ __forceinline__ void share_scores(float* scores, const T* q, const T* k) {
  using F = LatentTile<D>;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const T* const q_row = q + lane % 16 * tensor::kStride<F::kWidth> + lane / 16 * 8;
  const T* const k_row = k + (warp * 8 + lane % 8) * tensor::kStride<F::kWidth> + lane / 8 * 8;
  float sums[2][4] = {};  // two chains of additions
#pragma unroll 6
  for (int d = 0; d < F::kWidth; d += 32) {
    const uint4 low = load_matrices(q_row + d), high = load_matrices(q_row + d + 16), right = load_matrices(k_row + d);
    multiply_add<T>(sums[0], FragmentA{{low.x, low.y, low.z, low.w}}, FragmentB{{right.x, right.y}});
    multiply_add<T>(sums[1], FragmentA{{high.x, high.y, high.z, high.w}}, FragmentB{{right.z, right.w}});
  }
#pragma unroll
  for (int half = 0; half < 2; ++half)
    store_pack<float, 2>(scores + (lane / 4 + 8 * half) * kScores + warp * 8 + lane % 4 * 2,
                         {sums[0][2 * half] + sums[1][2 * half], sums[0][2 * half + 1] + sums[1][2 * half + 1]});
}

// All of a tile's scores, scaled; of keys outside from .. end - 1 minus infinity.
__device__ __forceinline__ void read_scores(tensor::Sums<kKeys>& s, const float* scores, float scale, int key, int from,
                                            int end) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = n * 8 + lane % 4 * 2;
      const auto two = load_pack<float, 2>(scores + (lane / 4 + 8 * half) * kScores + column);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int at = key + column + e;
        s[n][2 * half + e] = at >= from && at < end ? two.at[e] * scale : -INFINITY;
      }
    }
}

template <int D, class T, class C>
__device__ __forceinline__ void finish(const CachedCall<T, C>& call, int64_t first_head, int heads,
                                       const tensor::Sums<LatentTile<D>::kChannels>& out, const float (&top)[2],
                                       const float (&sum)[2]) {
  constexpr int kChannels = LatentTile<D>::kChannels;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = tensor::row_sum(sum[half]), factor = total == 0 ? 0.f : 1 / total;  // 0: no key was seen
    if (lane / 4 + 8 * half >= heads) continue;
    const int64_t row = first_head + lane / 4 + 8 * half, at = row * call.parts + blockIdx.x;
    const float lse = tensor::log_of_row(top[half], total);
    const bool writes_lse = warp == 0 && lane % 4 == 0;
    if (call.parts == 1) {
      tensor::store_row<kChannels>(call.y + row * call.hd_v, out, half, factor, warp * kChannels, call.hd_v, true);
      if (call.lse && writes_lse) call.lse[row] = lse;
      continue;
    }
#pragma unroll
    for (int n = 0; n < kChannels / 8; ++n) {
      const int d = warp * kChannels + n * 8 + lane % 4 * 2;
      if (d < call.hd_v)
        store_pack<float, 2>(call.part_y + at * call.hd_v + d,
                             {out[n][2 * half] * factor, out[n][2 * half + 1] * factor});
    }
    if (writes_lse) call.part_lse[at] = lse;
  }
}

// Block (part, chunk of heads, token).
template <class T, class C, int D>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor) latent_kernel(const CachedCall<T, C> call) {
  using F = LatentTile<D>;
  extern __shared__ __align__(16) unsigned char memory[];
  let_next_begin();
  wait_for_earlier();
  T *const q = reinterpret_cast<T*>(memory), *const buffers = q + F::kQueryElements;
  float* const scores = reinterpret_cast<float*>(buffers + 2 * F::kKeyElements);
  const int64_t token = blockIdx.z, first_head = token * call.H + blockIdx.y * kRows;
  const int heads = min(kRows, call.H - static_cast<int>(blockIdx.y) * kRows);
  const int position = call.positions[token], from = call.window > 0 ? max(position + 1 - call.window, 0) : 0;
  const int share = (position + 1 - from + call.parts - 1) / call.parts;
  const int first = from + static_cast<int>(blockIdx.x) * share, end = min(first + share, position + 1);
  const int64_t cache_row = call.rows[token];

  load_queries<D>(q, call, first_head, heads);
  if (first < end) load_keys<D>(buffers, call, cache_row, first, end);
  commit_copies();
  const float scale = call.scale * tensor::kLog2e;
  tensor::Sums<F::kChannels> out;
  tensor::clear<F::kChannels>(out);
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  int buffer = 0;
  for (int key = first; key < end; key += kKeys, buffer ^= 1) {
    wait_copies<0>();
    __syncthreads();  // the tile is visible to all, and all have used the previous one and its scores
    if (key + kKeys < end) load_keys<D>(buffers + (buffer ^ 1) * F::kKeyElements, call, cache_row, key + kKeys, end);
    commit_copies();
    const T* const k = buffers + buffer * F::kKeyElements;
    share_scores<D>(scores, q, k);
    __syncthreads();
    tensor::Sums<kKeys> s;
    read_scores(s, scores, scale, key, from, end);
    tensor::softmax_step<kKeys, F::kChannels>(s, out, top, sum);
    tensor::add_product<F::kChannels, kKeys, F::kWidth>(out, s, k + threadIdx.x / 32 * F::kChannels);
  }
  wait_copies<0>();  // a block must not end before its copies
  finish<D>(call, first_head, heads, out, top, sum);
}

template <int D, class T, class C>
void launch(Stream& stream, const CachedCall<T, C>& call) {
  using F = LatentTile<D>;
  witan::cuda::check(
      cudaFuncSetAttribute(latent_kernel<T, C, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, F::kBytes),
      "attention's shared memory");
  const dim3 grid(static_cast<unsigned>(call.parts), static_cast<unsigned>(call.chunks),
                  static_cast<unsigned>(call.T_));
  launch_early(stream, latent_kernel<T, C, D>, grid, kThreads, F::kBytes, call);
}

}  // namespace witan::kernels::cuda::latents
