// Vectors of a chunk's tokens, for the CPU twins of recurrences that are computed in chunks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "witan/kernels/attention/kv_cache.h"

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

// Copies the tokens of x [T, ..] that belong to the last chunk of their run to kept [R, chunk, ..] of its dtype.
inline void keep_chunk(const Tensor& kept, const Tensor& x, const CacheTokens& tokens) {
  const int64_t chunk = kept.size(1), bytes = kept.bytes() / (kept.size(0) * chunk);
  int64_t token = 0;
  for (const CacheRun& run : tokens.runs) {
    const int64_t end = run.past + run.count, first = std::max(run.past, (end - 1) / chunk * chunk);
    std::memcpy(static_cast<std::byte*>(kept.raw()) + (run.row * chunk + first % chunk) * bytes,
                static_cast<const std::byte*>(x.raw()) + (token + first - run.past) * bytes,
                static_cast<size_t>((end - first) * bytes));
    token += run.count;
  }
}

}  // namespace witan::kernels::cpu
