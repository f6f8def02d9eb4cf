// The cache of keys or values that generation reads, and attention over it.
//
// Each sequence has a row of the cache. A row is a ring of C slots: position p lies in slot p mod C, so that a layer
// that looks back a window of positions needs few slots, however long its sequences become.
#pragma once

#include <vector>

#include "witan/kernels/attention/attention.h"
#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// Consecutive tokens of the sequence that has row `row`: positions past .. past + count - 1.
struct CacheRun {
  int64_t row = 0, past = 0, count = 0;
};

// The tokens of a generation step, run after run, with the row and position of each.
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

// The inputs of attention in a generation step: few tokens of many sequences, whose keys and values are in caches. Each
// token reads the keys that it sees once for all query heads of a group.
//
// q [T, 1, H, hd]   y [T, 1, H, hd_v]   keys [R, C, G, hd], values [R, C, G, hd_v]   lse [T, H, 1] accumulator dtype,
// or undefined if not wanted. Token t, at position p = positions[t] of row rows[t], attends to positions 0 .. p of its
// row, or to the last `window` of them if that is not 0; all of these must be in the cache. The mathematics is that of
// attention_forward. The CPU twin has its bits, since keys come in the same order; CUDA's agrees to a few roundings of
// the dtype.
struct CachedInputs {
  Tensor q, keys, values;
  CacheTokens tokens;
  double scale = 1;
  int64_t window = 0;  // positions that a token sees, itself included; 0: all up to its own
};

void cached_attention(Stream& stream, const Tensor& y, const Tensor& lse, const CachedInputs& in);
WITAN_KERNEL_TWINS(cached_attention)

}  // namespace witan::kernels
