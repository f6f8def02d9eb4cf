// Shared by the kernels that choose tokens: a row of logits is cut into pieces, which different blocks read, and a
// block per piece finds the likeliest token of it. A logit and its id are packed into one integer, which is larger for
// the larger logit and, if logits are equal, for the lower id, so that the maximum does not depend on the order.
#pragma once

#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/cuda/early_launch.cuh"
#include "witan/kernels/vocabulary/sampling.h"

namespace witan::kernels::cuda {

constexpr int kPiece = 4096, kPieceThreads = 256;  // logits of a piece, and threads that read them
using Key = unsigned long long;
constexpr Key kNoToken = 0, kNotFinite = ~Key{0};

// A number that is larger for the larger logit, which is not NaN; it is not 0.
__device__ __forceinline__ uint32_t order_of(float logit) {
  const uint32_t bits = __float_as_uint(logit == 0 ? 0.0f : logit);  // -0 equals 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float logit_of(uint32_t order) {
  return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

__device__ __forceinline__ Key key_of(float logit, uint32_t id) {
  if (!(logit < INFINITY)) return kNotFinite;
  if (logit == -INFINITY) return kNoToken;
  return static_cast<Key>(order_of(logit)) << 32 | ~id;
}
__device__ __forceinline__ bool is_token(Key key) {
  return key != kNoToken && key != kNotFinite;
}
__device__ __forceinline__ int32_t id_of(Key key) {
  return is_token(key) ? static_cast<int32_t>(~static_cast<uint32_t>(key)) : -1;
}

// Calls visit(id, logit) for the ids [begin, end) of a row, begin being a multiple of N, with all threads of a block; a
// thread loads kDepth packs together.
template <class T, int N, int kThreads, int kDepth, class Visit>
__device__ __forceinline__ void for_logits(const T* row, int begin, int end, const Visit& visit) {
  constexpr int kApart = kThreads * N;
  for (int first = begin + static_cast<int>(threadIdx.x) * N; first < end; first += kDepth * kApart) {
    Pack<T, N> packs[kDepth];
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
      if (first + d * kApart < end) packs[d] = load_pack<T, N>(row + first + d * kApart);
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const int id = first + d * kApart + n;
        if (id < end) visit(id, convert<float>(packs[d].at[n]));
      }
  }
}

// Those of a piece with less than `words`.
template <class T, int N, class Visit>
__device__ __forceinline__ void for_piece(const T* row, int piece, int words, const Visit& visit) {
  constexpr int kDepth = kPiece / (kPieceThreads * N);
  const int begin = piece * kPiece;
  for_logits<T, N, kPieceThreads, kDepth>(row, begin, min(begin + kPiece, words), visit);
}

// Block (i, j) finds the likeliest token of piece j of row i; keys [rows, pieces]. Rows have `words` or, with `rows`,
// their own number of words.
template <class T, int N>
__global__ void __launch_bounds__(kPieceThreads)
    likeliest_of_pieces(Key* keys, const T* logits, int64_t V, int words, const SamplingRow* rows) {
  __shared__ Key shared[kPieceThreads / 32];
  wait_for_earlier();
  let_next_begin();
  Key best = kNoToken;
  for_piece<T, N>(logits + blockIdx.x * V, static_cast<int>(blockIdx.y),
                  rows == nullptr ? words : rows[blockIdx.x].words,
                  [&](int id, float logit) { best = max(best, key_of(logit, static_cast<uint32_t>(id))); });
  best = block_max(best, shared);
  if (threadIdx.x == 0) keys[blockIdx.x * gridDim.y + blockIdx.y] = best;
}

// The likeliest of a row's pieces, on all threads of a warp.
__device__ __forceinline__ Key likeliest_of(const Key* keys, int pieces) {
  Key best = kNoToken;
  for (int piece = static_cast<int>(threadIdx.x) % 32; piece < pieces; piece += 32) best = max(best, keys[piece]);
  return warp_max(best);
}

inline int pieces_of(int64_t words) {
  assert(words < INT32_MAX / 2);
  return static_cast<int>((words + kPiece - 1) / kPiece);
}

// Calls body.template operator()<T, N>() with the device type of the logits and the length of their packs.
template <class Body>
void dispatch_packs(const Tensor& logits, Body&& body) {
  dispatch_device(logits.dtype(), [&]<class T>() {
    if (packs<T>(logits.raw(), logits.size(1)))
      body.template operator()<T, kPack<T>>();
    else
      body.template operator()<T, 1>();
  });
}

}  // namespace witan::kernels::cuda
