// Chunks of recurrences in shared memory: their tokens and documents, and products of a block's threads. `Rows` has S,
// the tokens of a row, and ids_of(b), the sequence ids of row b or null.
#pragma once

#include "witan/kernels/common/launch.h"
#include "witan/kernels/linear_attention/cuda/documents.cuh"
#include "witan/kernels/linear_attention/gated_delta.h"

namespace witan::kernels::cuda {

inline constexpr int kDeltaThreads = 256, kDeltaWarps = kDeltaThreads / 32;
inline constexpr int kL = static_cast<int>(kDeltaChunk);
inline constexpr int kSlice = 32;        // value channels that a block computes with at a time, a lane each
inline constexpr int kSliceStride = 33;  // columns and rows without bank conflicts
inline constexpr int kLinkStride = kL + 1;

__device__ __forceinline__ float delta_exp(float x) {
  return expf(x);
}
__device__ __forceinline__ double delta_exp(double x) {
  return exp(x);
}

inline constexpr int kTileRows = kL / 16;  // and columns, of a thread's tile of links

// The tokens from `begin` on of a chunk: at most kL, of one document. Called by all threads; `shared` is one int.
template <class Rows>
__device__ int chunk_length(const Rows& in, int64_t b, int64_t begin, int* shared) {
  const int64_t left = in.S - begin;
  const int most = left < kL ? static_cast<int>(left) : kL;
  const int32_t* const ids = in.ids_of(b);
  if (threadIdx.x == 0) *shared = most;
  __syncthreads();
  if (ids != nullptr && threadIdx.x < most && ids[begin + threadIdx.x] != ids[begin])
    atomicMin(shared, static_cast<int>(threadIdx.x));
  __syncthreads();
  const int length = *shared;
  __syncthreads();
  return length;
}

// Whether token t begins a document.
template <class Rows>
__device__ __forceinline__ bool begins_document(const Rows& in, int64_t b, int64_t t) {
  if (t == 0) return true;
  const int32_t* const ids = in.ids_of(b);
  return ids != nullptr && ids[t] != ids[t - 1];
}

// The first token of the document that token `end` - 1 lies in. Called by all threads.
template <class Rows>
__device__ int64_t document_begin(const Rows& in, int64_t b, int64_t end, int* shared) {
  for (int64_t most = end; most > 0; most -= kDeltaThreads) {
    if (threadIdx.x == 0) *shared = -1;
    __syncthreads();
    const int64_t t = most - 1 - threadIdx.x;
    if (t >= 0 && begins_document(in, b, t)) atomicMax(shared, kDeltaThreads - static_cast<int>(threadIdx.x));
    __syncthreads();
    const int found = *shared;
    __syncthreads();
    if (found >= 0) return most - 1 - (kDeltaThreads - found);
  }
  return 0;
}

// A chunk of a head of a row.
struct ChunkPlace {
  int64_t b, begin;  // its first token in the row
  int head, L;
  bool begins, ends;  // its document
  __device__ int64_t first(int64_t S) const { return b * S + begin; }
};

// Calls run(place) for the chunks of head blockIdx.x of row blockIdx.y, from the last to the first. Called by all
// threads.
template <class Rows, class Run>
__device__ void for_chunks_back(const Rows& in, const Run& run) {
  __shared__ int shared;
  const int64_t b = blockIdx.y;
  for (int64_t end = in.S; end > 0;) {
    const int64_t document = document_begin(in, b, end, &shared);
    for (int64_t chunk = (end - document - 1) / kL; chunk >= 0; --chunk) {
      const int64_t begin = document + chunk * kL;
      const int L = static_cast<int>(end - begin < kL ? end - begin : kL);
      run(ChunkPlace{b, begin, static_cast<int>(blockIdx.x), L, chunk == 0, begin + L == end});
    }
    end = document;
  }
}

// The sum over the lanes of each half of a warp, the same on all of them.
template <class A>
__device__ __forceinline__ A half_warp_sum(A value) {
#pragma unroll
  for (int apart = 8; apart > 0; apart /= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
  return value;
}

// A block's product of up to 16 kRows x 16 kColumns sums; a thread has rows ty + 16 r and columns tx + 16 c. Terms are
// added in their order.
template <int kRows, int kColumns, class A>
struct BlockTile {
  A sum[kRows][kColumns] = {};

  __device__ static int row(int r) { return static_cast<int>(threadIdx.x) / 16 + 16 * r; }
  __device__ static int column(int c) { return static_cast<int>(threadIdx.x) % 16 + 16 * c; }

  // sum[i, j] += Σ_k left(i, k) right(k, j), for k in [0, K). Rows from `rows` on are read as if they were the last.
  template <class Left, class Right>
  __device__ void add(int rows, int K, const Left& left, const Right& right) {
    int at[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) at[r] = row(r) < rows ? row(r) : rows - 1;
    for (int k = 0; k < K; ++k) {
      A of_rows[kRows], of_columns[kColumns];
#pragma unroll
      for (int r = 0; r < kRows; ++r) of_rows[r] = left(at[r], k);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) of_columns[c] = right(k, column(c));
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int c = 0; c < kColumns; ++c) sum[r][c] += of_rows[r] * of_columns[c];
    }
  }
  // Calls body(i, j, sum) for the thread's sums in rows before `rows`.
  template <class Body>
  __device__ void each(int rows, const Body& body) {
    visit(*this, rows, body);
  }
  template <class Body>
  __device__ void each(int rows, const Body& body) const {
    visit(*this, rows, body);
  }

 private:
  template <class Tile, class Body>
  __device__ static void visit(Tile& tile, int rows, const Body& body) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        if (row(r) < rows) body(row(r), column(c), tile.sum[r][c]);
  }
};
template <class A>
using SliceTile = BlockTile<kL / 16, kSlice / 16, A>;  // [kL, kSlice]
template <class A>
using LinkTile = BlockTile<kL / 16, kL / 16, A>;  // [kL, kL]
static_assert(kDeltaThreads == 16 * 16);

// The bytes of so many numbers in shared memory, which the kernel may take from then on. Throws ShapeError, naming
// the key of their size, if a block of this device has less.
template <class A, class Kernel>
int chunk_shared_bytes(Stream& stream, const char* name, const char* key, int64_t elements, Kernel* kernel) {
  const int64_t most = witan::cuda::properties(stream.device().index).shared_per_block,
                bytes = elements * static_cast<int64_t>(sizeof(A));
  require<ShapeError>(bytes <= most, name, ": vectors of this size and dtype need ", bytes,
                      " bytes of shared memory, of ", most, " on this GPU; use a smaller ", key, ", or float32");
  witan::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
                     name);
  return static_cast<int>(bytes);
}

// Launches a kernel of kDeltaThreads threads a block with so much shared memory.
template <class A, class... Parameters, class... Arguments>
void launch_chunks(Stream& stream, const char* name, const char* key, int64_t elements, const dim3& grid,
                   void (*kernel)(Parameters...), const Arguments&... arguments) {
  const int bytes = chunk_shared_bytes<A>(stream, name, key, elements, kernel);
  kernel<<<grid, kDeltaThreads, bytes, native(stream)>>>(arguments...);
}

}  // namespace witan::kernels::cuda
