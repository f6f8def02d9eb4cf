// The backward of sparse_tiles.cuh: one pass by tokens for dq, and one by keys for dk and dv. Each computes the scores
// again, so that blocks share no sums.
#include "witan/kernels/attention/cuda/seen_slots.cuh"
#include "witan/kernels/attention/cuda/sparse_tiles.cuh"

namespace witan::kernels::cuda {
namespace {

using tensor::kStride;
using tensor::Sums;

constexpr int kDeltaThreads = 256;

template <class T>
struct SparseOutputs {
  T *dq, *dk, *dv;
  float* delta;  // [R C, N]
  const T* dy;
  const float* lse;
};

// delta = dy . y; a warp has a head of a token.
template <class T>
__global__ void __launch_bounds__(kDeltaThreads)
    sparse_delta_kernel(float* delta, const T* dy, const T* y, int64_t count, int hd_v) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * (kDeltaThreads / 32) + threadIdx.x / 32;
  if (at >= count) return;
  const float sum = warp_dot(dy + at * hd_v, y + at * hd_v, hd_v);
  if (threadIdx.x % 32 == 0) delta[at] = sum;
}

// ---- dq: as the forward, with dy beside q and half as many keys
// -------------------------------------------------------

template <int D, int DV>
struct DqShape {
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kKeys = 32;
  static constexpr int kQuery = kTileL * kStride<D>, kDy = kTileL * kStride<DV>;
  static constexpr int kKey = kKeys * kStride<D>, kValue = kKeys * kStride<DV>;
  static constexpr int kBytes = (kQuery + kDy + 2 * (kKey + kValue)) * 2;
};

template <class T, int D, int DV>
__global__ void __launch_bounds__(DqShape<D, DV>::kThreads)
    sparse_dq_tile_kernel(const SparseOutputs<T> to, const SparseTiles<T> in) {
  using F = DqShape<D, DV>;
  extern __shared__ __align__(16) unsigned char memory[];
  T *const q = reinterpret_cast<T*>(memory), *const dy = q + F::kQuery, *const buffers = dy + F::kDy;
  const int head = static_cast<int>(blockIdx.y), warp = own_warp();
  const int64_t row = blockIdx.z, stride = static_cast<int64_t>(in.heads) * in.hd,
                stride_v = static_cast<int64_t>(in.heads) * in.hd_v;
  for_chunks(in, true, [&](const int32_t* entry, const ChunkSpan& span) {
    const int32_t* first = entry;
    while (*first % 2 == 0) --first;
    const int begin = *first / 2, end = span.begin + span.L;
    const auto load = [&](int key, int turn) {
      T* const k = buffers + turn * (F::kKey + F::kValue);
      copy_tile<D, F::kKeys, F::kThreads>(k, in.k + in.at(row, key, head, in.hd), stride, end - key, in.hd);
      copy_tile<DV, F::kKeys, F::kThreads>(k + F::kKey, in.v + in.at(row, key, head, in.hd_v), stride_v, end - key,
                                           in.hd_v);
    };
    copy_tile<D, kTileL, F::kThreads>(q, in.q + in.at(row, span.begin, head, in.hd), stride, span.L, in.hd);
    copy_tile<DV, kTileL, F::kThreads>(dy, to.dy + in.at(row, span.begin, head, in.hd_v), stride_v, span.L, in.hd_v);
    load(begin, 0);
    commit_copies();
    int slot[2];
    float lse[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      slot[half] = span.begin + min(16 * warp + warp_lane() / 4 + 8 * half, span.L - 1);
      lse[half] = to.lse[in.sum_at(row, slot[half], head)] * tensor::kLog2e;
      delta[half] = to.delta[in.at(row, slot[half], head, 1)];
    }
    const auto bits_of = [&](int key, uint64_t(&bits)[2]) {
      if (key < end) bits[0] = in.bits(row, slot[0], key), bits[1] = in.bits(row, slot[1], key);
    };
    uint64_t bits[2], following[2] = {};
    bits_of(begin, bits);
    Sums<D> out;
    tensor::clear<D>(out);
    int turn = 0;
    for (int key = begin; key < end; key += F::kKeys, turn ^= 1) {
      wait_copies<0>();
      __syncthreads();
      if (key + F::kKeys < end) load(key + F::kKeys, turn ^ 1);
      commit_copies();
      bits_of(key + F::kKeys, following);
      bits[0] &= 0xffffffffU, bits[1] &= 0xffffffffU;
      const T* const k = buffers + turn * (F::kKey + F::kValue);
      if (__any_sync(0xffffffffu, (bits[0] | bits[1]) != 0)) {
        Sums<F::kKeys> s, dp;
        tensor::clear<F::kKeys>(s);
        tensor::clear<F::kKeys>(dp);
        tensor::add_scores<F::kKeys, D>(s, q + 16 * warp * kStride<D>, k);
        tensor::add_scores<F::kKeys, DV>(dp, dy + 16 * warp * kStride<DV>, k + F::kKey);
        tensor::scale_scores<F::kKeys>(s, in.scale * tensor::kLog2e);
        hide_others<F::kKeys>(s, bits);
#pragma unroll
        for (int n = 0; n < F::kKeys / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) dp[n][e] = exp2_fast(s[n][e] - lse[e / 2]) * (dp[n][e] - delta[e / 2]);
        tensor::add_product<D, F::kKeys, D>(out, dp, k);
      }
      bits[0] = following[0], bits[1] = following[1];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (16 * warp + warp_lane() / 4 + 8 * half < span.L)
        tensor::store_row<D>(to.dq + in.at(row, slot[half], head, in.hd), out, half, in.scale, 0, in.hd, true);
    __syncthreads();
  });
}

// ---- dk and dv: a block has a chunk of keys, 16 per warp, and takes tokens 32 at a time, with scores transposed
// -------

// Two warps share 16 keys of wide heads, and each computes half of the columns, as all would not fit in registers.
template <int D, int DV>
struct DkvShape {
  static constexpr int kParts = D <= 192 ? 1 : 2, kColumns = D / kParts, kColumnsV = DV / kParts;
  static constexpr int kWarps = 4 * kParts, kThreads = 32 * kWarps, kRows = 32;
  static constexpr int kKey = kTileL * kStride<D>, kValue = kTileL * kStride<DV>;
  static constexpr int kQuery = kRows * kStride<D>, kDy = kRows * kStride<DV>;
  static constexpr int kBytes = (kKey + kValue + 2 * (kQuery + kDy)) * 2;
};

// A tile's tokens, in shared memory: what a thread of the first warp knows of its token.
struct TokenNumbers {
  uint64_t bits;  // of the chunk's keys
  float lse, delta;
};

// Turns s^T and dp^T [16 keys, R tokens] into p and ds, both transposed, ds without `scale`; `key` is the lane's first
// key of the chunk.
template <int R>
__device__ __forceinline__ void pair_gradients(Sums<R>& s, Sums<R>& dp, const TokenNumbers* tokens, int key,
                                               float scale) {
#pragma unroll
  for (int n = 0; n < R / 8; ++n)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const TokenNumbers of = tokens[8 * n + static_cast<int>(threadIdx.x) % 4 * 2 + c];
      const uint64_t bits = of.bits >> key;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int e = 2 * half + c;
        const float p = (bits >> 8 * half & 1) != 0 ? exp2_fast(s[n][e] * scale - of.lse) : 0.0f;
        s[n][e] = p;
        dp[n][e] = p * (dp[n][e] - of.delta);
      }
    }
}

template <class T, int D, int DV>
__global__ void __launch_bounds__(DkvShape<D, DV>::kThreads)
    sparse_dkv_tile_kernel(const SparseOutputs<T> to, const SparseTiles<T> in) {
  using F = DkvShape<D, DV>;
  constexpr int R = F::kRows;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ TokenNumbers numbers[2][R];
  T *const k = reinterpret_cast<T*>(memory), *const v = k + F::kKey, *const buffers = v + F::kValue;
  const int head = static_cast<int>(blockIdx.y), slab = own_warp() % 4 * 16, part = own_warp() / 4;
  const int64_t row = blockIdx.z, stride = static_cast<int64_t>(in.heads) * in.hd,
                stride_v = static_cast<int64_t>(in.heads) * in.hd_v;
  for_chunks(in, false, [&](const int32_t* entry, const ChunkSpan& span) {
    while (entry[1] % 2 == 0) ++entry;
    const int end = entry[1] / 2;  // of the document
    const auto load = [&](int token, int turn) {
      T* const q = buffers + turn * (F::kQuery + F::kDy);
      copy_tile<D, R, F::kThreads>(q, in.q + in.at(row, token, head, in.hd), stride, end - token, in.hd);
      copy_tile<DV, R, F::kThreads>(q + F::kQuery, to.dy + in.at(row, token, head, in.hd_v), stride_v, end - token,
                                    in.hd_v);
    };
    const auto numbers_of = [&](int token) {
      const int own = token + static_cast<int>(threadIdx.x);
      if (threadIdx.x >= R || own >= end) return TokenNumbers{};
      return TokenNumbers{in.bits(row, own, span.begin), to.lse[in.sum_at(row, own, head)] * tensor::kLog2e,
                          to.delta[in.at(row, own, head, 1)]};
    };
    const auto keep = [&](const TokenNumbers& of, int turn) {
      if (threadIdx.x < R) numbers[turn][threadIdx.x] = of;
    };
    copy_tile<D, kTileL, F::kThreads>(k, in.k + in.at(row, span.begin, head, in.hd), stride, span.L, in.hd);
    copy_tile<DV, kTileL, F::kThreads>(v, in.v + in.at(row, span.begin, head, in.hd_v), stride_v, span.L, in.hd_v);
    load(span.begin, 0);
    commit_copies();
    keep(numbers_of(span.begin), 0);
    Sums<F::kColumns> dk;
    Sums<F::kColumnsV> dv;
    tensor::clear<F::kColumns>(dk);
    tensor::clear<F::kColumnsV>(dv);
    int turn = 0;
    for (int token = span.begin; token < end; token += R, turn ^= 1) {
      wait_copies<0>();
      __syncthreads();
      if (token + R < end) load(token + R, turn ^ 1);
      commit_copies();
      const TokenNumbers following = numbers_of(token + R);
      const T *const q = buffers + turn * (F::kQuery + F::kDy), *const dy = q + F::kQuery;
      if (__any_sync(0xffffffffu, (numbers[turn][warp_lane()].bits >> slab & 0xffff) != 0)) {
        Sums<R> s, dp;
        tensor::clear<R>(s);
        tensor::clear<R>(dp);
        tensor::add_scores<R, D>(s, k + slab * kStride<D>, q);
        tensor::add_scores<R, DV>(dp, v + slab * kStride<DV>, dy);
        pair_gradients<R>(s, dp, numbers[turn], slab + warp_lane() / 4, in.scale * tensor::kLog2e);
        tensor::add_product<F::kColumnsV, R, DV>(dv, s, dy + part * F::kColumnsV);
        tensor::add_product<F::kColumns, R, D>(dk, dp, q + part * F::kColumns);
      }
      keep(following, turn ^ 1);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = slab + warp_lane() / 4 + 8 * half, slot = span.begin + key;
      if (key >= span.L) continue;
      tensor::store_row<F::kColumns>(to.dk + in.at(row, slot, head, in.hd), dk, half, in.scale, part * F::kColumns,
                                     in.hd, true);
      tensor::store_row<F::kColumnsV>(to.dv + in.at(row, slot, head, in.hd_v), dv, half, 1.0f, part * F::kColumnsV,
                                      in.hd_v, true);
    }
    __syncthreads();
  });
}

}  // namespace

void sparse_backward_by_tiles(Stream& stream, const SparseGradients& to, const Tensor& dy, const Tensor& y,
                              const Tensor& lse, const SparseInputs& in, const SparseMemory& memory) {
  sparse_prepare(stream, in, memory);
  dispatch_half(dy.dtype(), [&]<class T>() {
    const SparseTiles<T> tiles(in, memory);
    const SparseOutputs<T> outputs{ptr<T>(to.dq),        ptr<T>(to.dk), ptr<T>(to.dv),
                                   ptr<float>(to.delta), ptr<T>(dy),    ptr<float>(lse)};
    const int64_t rows = in.where.rows * tiles.C * tiles.heads;
    sparse_delta_kernel<T>
        <<<static_cast<unsigned>((rows + kDeltaThreads / 32 - 1) / (kDeltaThreads / 32)), kDeltaThreads, 0,
           native(stream)>>>(outputs.delta, outputs.dy, ptr<T>(y), rows, tiles.hd_v);
    const dim3 grid(static_cast<unsigned>((tiles.C + kTileL - 1) / kTileL), static_cast<unsigned>(tiles.heads),
                    static_cast<unsigned>(in.where.rows));
    dispatch_sparse_tile(tiles.hd, tiles.hd_v, [&]<int D, int DV>() {
      using Q = DqShape<D, DV>;
      using K = DkvShape<D, DV>;
      take_shared_memory(stream, "sparse_attention", sparse_dq_tile_kernel<T, D, DV>, Q::kBytes);
      sparse_dq_tile_kernel<T, D, DV><<<grid, Q::kThreads, Q::kBytes, native(stream)>>>(outputs, tiles);
      take_shared_memory(stream, "sparse_attention", sparse_dkv_tile_kernel<T, D, DV>, K::kBytes);
      sparse_dkv_tile_kernel<T, D, DV><<<grid, K::kThreads, K::kBytes, native(stream)>>>(outputs, tiles);
    });
  });
}

}  // namespace witan::kernels::cuda
