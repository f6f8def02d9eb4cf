// Vectors of a chunk's tokens, for the CPU twins of recurrences that are computed in chunks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace witan::kernels::cpu {

// y += a x
template <class A>
[[gnu::noinline]] void add_scaled(A* y, A a, const A* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] += a * x[i];
}

template <class A>
[[gnu::noinline]] A dot_of(const A* x, const A* y, int64_t n) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

// Calls each(first, count) for the chunks of up to `most` tokens of tokens [begin, end).
template <class Each>
void for_chunks_of(int64_t most, int64_t begin, int64_t end, const Each& each) {
  for (int64_t first = begin; first < end; first += most) each(first, std::min(most, end - first));
}

}  // namespace witan::kernels::cpu
