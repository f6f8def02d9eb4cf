// The cache of keys or values that generation reads.
//
// Each sequence has a row of the cache. A row is a ring of C slots: position p lies in slot p mod C, so that a layer
// that looks back a window of positions needs few slots, however long its sequences become.
#pragma once

#include <vector>

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// Consecutive tokens of the sequence that has row `row`: positions past .. past + count - 1.
struct CacheRun {
  int64_t row = 0, past = 0, count = 0;
};

// The tokens of a step of generation, run after run, and where each of them is.
struct CacheTokens {
  std::vector<CacheRun> runs;
  Tensor rows, positions;  // [T] int32

  // Runs [first, first + count), whose tokens begin at `token`.
  CacheTokens part(size_t first, size_t count, int64_t token) const {
    const auto begin = runs.begin() + static_cast<std::ptrdiff_t>(first);
    CacheTokens some{{begin, begin + static_cast<std::ptrdiff_t>(count)}, {}, {}};
    int64_t tokens = 0;
    for (const CacheRun& run : some.runs) tokens += run.count;
    some.rows = rows.narrow(0, token, tokens);
    some.positions = positions.narrow(0, token, tokens);
    return some;
  }
};

// cache[rows[t], positions[t] mod C, :] = x[t, :];  cache [R, C, G, hd], x [.., G, hd] of T tokens and of its dtype. No
// two tokens have the same slot.
void append_to_cache(Stream& stream, const Tensor& cache, const Tensor& x, const CacheTokens& tokens);
WITAN_KERNEL_TWINS(append_to_cache)

}  // namespace witan::kernels
