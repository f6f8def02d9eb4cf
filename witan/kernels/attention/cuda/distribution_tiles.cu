// The mean of heads' probabilities on tensor cores: a block has 64 tokens and 64 keys of a row, a warp 16 of the
// tokens, and takes one head after another.
#include "witan/kernels/attention/cuda/seen_slots.cuh"
#include "witan/kernels/attention/cuda/sparse_tiles.cuh"
#include "witan/kernels/attention/cuda/unchosen.cuh"

namespace witan::kernels::cuda {
namespace {

using tensor::kStride;
using tensor::Sums;

constexpr int kMeanThreads = 128, kMeanTile = 64;

template <class T>
struct MeanCall {
  float* p;
  const float* lse;
  const T *q, *k;
  SlotView view;
  int64_t tokens;
  int heads, hd;
  float scale, share;
};

template <class T, int D>
__global__ void __launch_bounds__(kMeanThreads) distribution_tile_kernel(const MeanCall<T> in) {
  constexpr int kTile = kMeanTile * kStride<D>;
  extern __shared__ __align__(16) unsigned char memory[];
  T* const buffers = reinterpret_cast<T*>(memory);
  const SlotView& view = in.view;
  const int64_t row = blockIdx.z, before = row * view.slots - view.first;  // the row's slot 0 as a token of the call
  const int begin = max(int64_t{0}, -before), end = min(int64_t{view.slots}, in.tokens - before);
  const int slot = begin + static_cast<int>(blockIdx.y) * kMeanTile, key = static_cast<int>(blockIdx.x) * kMeanTile;
  if (slot >= end) return;
  const int warp = own_warp(), column = warp_lane() % 4 * 2;
  int own[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) own[half] = min(slot + 16 * warp + warp_lane() / 4 + 8 * half, end - 1);
  Sums<kMeanTile> sums;
  tensor::clear<kMeanTile>(sums);
  if (key < min(slot + kMeanTile, end)) {
    const int64_t stride = static_cast<int64_t>(in.heads) * in.hd;
    const auto load = [&](int head, int turn) {
      T* const q = buffers + turn * 2 * kTile;
      copy_tile<D, kMeanTile, kMeanThreads>(q, in.q + (before + slot) * stride + head * in.hd, stride, end - slot,
                                            in.hd);
      copy_tile<D, kMeanTile, kMeanThreads>(q + kTile, in.k + (row * view.slots + key) * stride + head * in.hd, stride,
                                            view.slots - key, in.hd);
      commit_copies();
    };
    const auto lse_of = [&](int head, float(&lse)[2]) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        lse[half] = in.lse[(row * in.heads + head) * view.slots + own[half]] * tensor::kLog2e;
    };
    float lse[2], following[2] = {};
    load(0, 0);
    lse_of(0, lse);
    for (int head = 0; head < in.heads; ++head) {
      wait_copies<0>();
      __syncthreads();
      if (head + 1 < in.heads) {
        load(head + 1, (head + 1) % 2);
        lse_of(head + 1, following);
      }
      const T* const q = buffers + head % 2 * 2 * kTile;
      Sums<kMeanTile> s;
      tensor::clear<kMeanTile>(s);
      tensor::add_scores<kMeanTile, D>(s, q + 16 * warp * kStride<D>, q + kTile);
#pragma unroll
      for (int n = 0; n < kMeanTile / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[n][e] += exp2_fast(s[n][e] * (in.scale * tensor::kLog2e) - lse[e / 2]);
      lse[0] = following[0], lse[1] = following[1];
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (slot + 16 * warp + warp_lane() / 4 + 8 * half >= end) continue;
#pragma unroll
    for (int n = 0; n < kMeanTile / 8; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int j = key + 8 * n + column + c;
        if (j < view.slots)
          in.p[(before + own[half]) * view.slots + j] =
              view.sees(row, own[half], j) ? sums[n][2 * half + c] * in.share : 0.0f;
      }
  }
}

}  // namespace

void distribution_by_tiles(Stream& stream, const Tensor& p, const Tensor& lse, const SparseInputs& in, int64_t heads) {
  dispatch_half(in.q.dtype(), [&]<class T>() {
    const MeanCall<T> call{ptr<float>(p),
                           ptr<float>(lse),
                           ptr<T>(in.q),
                           ptr<T>(in.k),
                           SlotView(in.where),
                           in.q.size(0),
                           static_cast<int>(in.q.size(1)),
                           static_cast<int>(in.q.size(2)),
                           static_cast<float>(in.scale),
                           1 / static_cast<float>(heads)};
    const int64_t most = std::min(in.q.size(0), in.where.slots);
    const dim3 grid(static_cast<unsigned>((in.where.slots + kMeanTile - 1) / kMeanTile),
                    static_cast<unsigned>((most + kMeanTile - 1) / kMeanTile), static_cast<unsigned>(in.where.rows));
    dispatch_sparse_tile(call.hd, call.hd <= 192 ? 64 : 256, [&]<int D, int>() {
      constexpr int kBytes = 4 * kMeanTile * kStride<D> * 2;
      take_shared_memory(stream, "attention_distribution", distribution_tile_kernel<T, D>, kBytes);
      distribution_tile_kernel<T, D><<<grid, kMeanThreads, kBytes, native(stream)>>>(call);
    });
  });
  if (in.chosen.defined()) fill_unchosen(stream, p, in.chosen, 0.0f);
}

}  // namespace witan::kernels::cuda
