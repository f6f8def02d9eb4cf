// Generation steps for tests of recurrent kernels.
#pragma once

#include <vector>

#include "support/rank.h"
#include "witan/kernels/attention/kv_cache.h"

namespace witan::testing {

inline kernels::CacheTokens tokens_of(Rank& rank, const std::vector<kernels::CacheRun>& runs) {
  std::vector<int32_t> rows, positions;
  for (const kernels::CacheRun& run : runs)
    for (int64_t p = run.past; p < run.past + run.count; ++p) {
      rows.push_back(static_cast<int32_t>(run.row));
      positions.push_back(static_cast<int32_t>(p));
    }
  const auto T = static_cast<int64_t>(rows.size());
  return {runs, rank.tensor<int32_t>({T}, rows), rank.tensor<int32_t>({T}, positions)};
}

// Calls step(past, count, tokens) for the steps of a sequence in row 1 of a state.
template <class Step>
void for_steps(Rank& rank, const std::vector<int64_t>& counts, const Step& step) {
  int64_t past = 0;
  for (const int64_t count : counts) {
    step(past, count, tokens_of(rank, {{1, past, count}}));
    past += count;
  }
}

// The tokens of each step, nine together.
inline const std::vector<std::vector<int64_t>> kSteps = {{9}, {1, 1, 1, 1, 1, 1, 1, 1, 1}, {2, 1, 5, 1}};
// The 150 tokens take more than two chunks.
inline const std::vector<std::vector<int64_t>> kChunkSteps = {
    {150}, std::vector<int64_t>(150, 1), {64, 64, 22}, {3, 60, 1, 1, 63, 22}, {1, 130, 19}};

}  // namespace witan::testing
