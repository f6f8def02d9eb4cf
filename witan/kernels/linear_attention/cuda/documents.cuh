// The documents of a row, and sums over rows, for the CUDA twins of this room.
#pragma once

#include "witan/kernels/common/cuda/add_strips.cuh"

namespace witan::kernels::cuda {

// The first token from `least` on in the run of equal ids that ends with token t; ids: of the row, null: one document.
__device__ __forceinline__ int64_t run_begin(const int32_t* ids, int64_t t, int64_t least) {
  int64_t s = t;
  while (s > least && (ids == nullptr || ids[s - 1] == ids[t])) --s;
  return s;
}

// The end of the run that begins with token t, at most `most`.
__device__ __forceinline__ int64_t run_end(const int32_t* ids, int64_t t, int64_t most) {
  int64_t s = t + 1;
  while (s < most && (ids == nullptr || ids[s] == ids[t])) ++s;
  return s;
}

inline constexpr int kTermThreads = 256, kTermWarps = kTermThreads / 32;

// partials[strip, d] = sum over the strip's rows t of term(t, d)
template <class A, class Term>
__global__ void __launch_bounds__(kTermThreads)
    sum_terms_kernel(A* partials, Term term, int64_t rows, int64_t D, int64_t strip_rows) {
  __shared__ A shared[kTermWarps][33];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t d = static_cast<int64_t>(blockIdx.x) * 32 + lane, begin = blockIdx.y * strip_rows;
  const int64_t end = begin + strip_rows < rows ? begin + strip_rows : rows;
  A sum = 0;
  if (d < D)
    for (int64_t t = begin + warp; t < end; t += kTermWarps) sum += term(t, d);
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || d >= D) return;
  A total = 0;
  for (int w = 0; w < kTermWarps; ++w) total += shared[w][lane];
  partials[static_cast<int64_t>(blockIdx.y) * D + d] = total;
}

// to[d] (=|+=) sum over rows t of term(t, d), in an order that the shape alone decides. The last kernel of a twin, or
// followed only by others of its kind: it takes the stream's scratch.
template <class A, class Term>
void sum_terms(Stream& stream, const Tensor& to, Write write, int64_t rows, Term term) {
  constexpr int64_t kLeastRows = 64, kMostStrips = 256;
  const int64_t D = to.elements();
  const int64_t strips = std::clamp<int64_t>((rows + kLeastRows - 1) / kLeastRows, 1, kMostStrips);
  const Strips<A> partials(stream, strips, D);
  const dim3 grid(static_cast<unsigned>((D + 31) / 32), static_cast<unsigned>(strips));
  sum_terms_kernel<A>
      <<<grid, kTermThreads, 0, native(stream)>>>(partials.strips, term, rows, D, (rows + strips - 1) / strips);
  add_strips(stream, to, write, partials);
}

}  // namespace witan::kernels::cuda
