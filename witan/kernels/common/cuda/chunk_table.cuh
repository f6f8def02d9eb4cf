// The chunks of rows of documents, in which kernels on tensor cores take tokens: of 64 tokens at most, counted from a
// document's first token on, so that a document's sums are formed in the same order wherever it lies in its row.
#pragma once

#include "witan/kernels/common/cuda/tensor_tiles.cuh"

namespace witan::kernels::cuda {

inline constexpr int kTileL = 64;  // tokens of a chunk

// The chunks of each row. chunks [B, S + 2]: a row's number of chunks, then for each of them twice its first token, + 1
// where it begins a document, then 2 S + 1.   ids [B, S], or null: each row is one document
void fill_chunk_table(Stream& stream, int32_t* chunks, const int32_t* ids, int64_t rows, int64_t S);

struct ChunkSpan {
  int begin, L;       // tokens of the row
  bool begins, ends;  // its document
};
__device__ __forceinline__ ChunkSpan chunk_span(int entry, int next) {
  return {entry / 2, next / 2 - entry / 2, entry % 2 != 0, next % 2 != 0};
}

// The sums of a chunk's numbers up to each of them; a lane of a warp has numbers lane and lane + 32.
__device__ __forceinline__ float2 scan_tokens(float first, float second) {
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) {
    const float a = __shfl_up_sync(0xffffffffu, first, apart), b = __shfl_up_sync(0xffffffffu, second, apart);
    if (warp_lane() >= apart) first += a, second += b;
  }
  return {first, second + __shfl_sync(0xffffffffu, first, 31)};
}

}  // namespace witan::kernels::cuda
