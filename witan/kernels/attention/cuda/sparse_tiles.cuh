// Attention to chosen keys on tensor cores, in training. Tokens and keys are taken in the chunks of their documents
// (chunk_table.cuh), a tile of all keys of a chunk at a time, in which bits of a mask say what was chosen. A key that a
// token did not choose adds exactly 0, so that a token's bits depend on its own choice and document alone.
#pragma once

#include "witan/kernels/attention/cuda/attention_tensor.cuh"
#include "witan/kernels/attention/cuda/attention_tensor_forward.cuh"
#include "witan/kernels/attention/sparse_attention.h"
#include "witan/kernels/common/cuda/chunk_table.cuh"

namespace witan::kernels::cuda {

template <class T>
struct SparseTiles {
  const T *q, *k, *v;
  const uint64_t* mask;   // [R, C, words]: bit j % 64 of word j / 64 says whether the token chose slot j
  const int32_t* chunks;  // [R, C + 2]
  int64_t C;
  int words, heads, hd, hd_v;
  float scale;

  SparseTiles(const SparseInputs& in, const SparseMemory& memory)
      : q(ptr<T>(in.q)),
        k(ptr<T>(in.k)),
        v(ptr<T>(in.v)),
        mask(ptr<uint64_t>(memory.mask)),
        chunks(ptr<int32_t>(memory.chunks)),
        C(in.where.slots),
        words(static_cast<int>(memory.mask.size(1))),
        heads(static_cast<int>(in.q.size(1))),
        hd(static_cast<int>(in.q.size(2))),
        hd_v(static_cast<int>(in.v.size(3))),
        scale(static_cast<float>(in.scale)) {}

  // The offset of a slot's head in rows of `width` channels, which lie heads * width apart.
  __device__ int64_t at(int64_t row, int slot, int head, int width) const {
    return ((row * C + slot) * heads + head) * width;
  }
  __device__ int64_t sum_at(int64_t row, int slot, int head) const { return (row * heads + head) * C + slot; }
  // The bits of slots [first, first + 64) of a token.
  __device__ uint64_t bits(int64_t row, int slot, int first) const {
    const uint64_t* const of = mask + (row * C + slot) * words;
    const int word = first / 64, shift = first % 64;
    const uint64_t low = of[word] >> shift;
    return shift == 0 || word + 1 >= words ? low : low | of[word + 1] << (64 - shift);
  }
};

// A block's chunks: those of head blockIdx.y of row blockIdx.z, every gridDim.x-th from the last or the first one on.
template <class T, class Body>
__device__ __forceinline__ void for_chunks(const SparseTiles<T>& in, bool last_first, const Body& body) {
  const int32_t* const table = in.chunks + blockIdx.z * (in.C + 2);
  for (int i = static_cast<int>(blockIdx.x); i < table[0]; i += static_cast<int>(gridDim.x)) {
    const int n = last_first ? table[0] - i : 1 + i;
    body(table + n, chunk_span(table[n], table[n + 1]));
  }
}

// Copies R rows of a tile of D columns (attention_tensor.cuh) from rows `stride` apart; zeros from row L and channel
// `width` on.
template <int D, int R, int kThreads, class T>
__device__ __forceinline__ void copy_tile(T* to, const T* from, int64_t stride, int L, int width) {
  constexpr int kPacks = D / 8;
#pragma unroll
  for (int at = 0; at < R * kPacks; at += kThreads) {
    const int i = at + static_cast<int>(threadIdx.x), r = i / kPacks, d = i % kPacks * 8;
    static_assert(R * kPacks % kThreads == 0);
    const bool wanted = r < L && d < width;
    copy_async(to + r * tensor::kStride<D> + d, wanted ? from + r * stride + d : from, wanted);
  }
}

// Sets the scores of keys without a bit to minus infinity; bits of the lane's two rows.
template <int N>
__device__ __forceinline__ void hide_others(tensor::Sums<N>& s, const uint64_t (&bits)[2]) {
  const int shift = static_cast<int>(threadIdx.x) % 4 * 2;
  const uint64_t of[2] = {bits[0] >> shift, bits[1] >> shift};
#pragma unroll
  for (int n = 0; n < N / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if ((of[e / 2] >> (8 * n + e % 2) & 1) == 0) s[n][e] = -INFINITY;
}

// Calls body.template operator()<D, DV>() with the columns of tiles for heads of hd and hd_v channels.
template <class Body>
void dispatch_sparse_tile(int hd, int hd_v, const Body& body) {
  const int widest = std::max(hd, hd_v);
  if (widest <= 64)
    body.template operator()<64, 64>();
  else if (widest <= 128)
    body.template operator()<128, 128>();
  else if (hd <= 192 && hd_v <= 128)
    body.template operator()<192, 128>();
  else
    body.template operator()<256, 256>();
}

// Fills memory.chunks and memory.mask.
void sparse_prepare(Stream& stream, const SparseInputs& in, const SparseMemory& memory);
void sparse_forward_by_tiles(Stream& stream, const Tensor& y, const Tensor& lse, const SparseInputs& in,
                             const SparseMemory& memory);
void sparse_backward_by_tiles(Stream& stream, const SparseGradients& to, const Tensor& dy, const Tensor& y,
                              const Tensor& lse, const SparseInputs& in, const SparseMemory& memory);
// The mean of heads' probabilities of all keys that are seen, chosen or not.
void distribution_by_tiles(Stream& stream, const Tensor& p, const Tensor& lse, const SparseInputs& in, int64_t heads);

}  // namespace witan::kernels::cuda
