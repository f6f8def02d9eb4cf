// What a router's kernels write, before they do.
#pragma once

#include <algorithm>

#include "support/rank.h"
#include "witan/kernels/moe/router.h"

namespace witan::testing {

// For T tokens, E experts and K of them a token, in the accumulator dtype A: floating outputs are poison, integers -7.
inline kernels::RouterOutputs poisoned_outputs(Rank& rank, int64_t T, int64_t E, int64_t K, DType A) {
  const kernels::RouterOutputs out{
      rank.stream.empty({T, K}, DType::i32), rank.poisoned({T, K}, A), rank.poisoned({T, E}, A), rank.poisoned({T}, A),
      rank.stream.empty({E}, DType::i64),    rank.poisoned({1}, A),    rank.poisoned({1}, A),    rank.poisoned({1}, A)};
  std::ranges::fill(out.ids.span<int32_t>(), -7);
  std::ranges::fill(out.counts.span<int64_t>(), -7);
  return out;
}

}  // namespace witan::testing
