// The tokens of runs of a cache (kernels/attention/kv_cache.h), for tests.
#pragma once

#include <cstdint>
#include <vector>

#include "support/rank.h"
#include "witan/kernels/attention/kv_cache.h"

namespace witan::testing {

// Of the runs one after the other: each token's row and position.
inline kernels::CacheTokens cache_tokens(Rank& rank, const std::vector<kernels::CacheRun>& runs) {
  std::vector<int32_t> rows, positions;
  for (const kernels::CacheRun& run : runs)
    for (int64_t i = 0; i < run.count; ++i) {
      rows.push_back(static_cast<int32_t>(run.row));
      positions.push_back(static_cast<int32_t>(run.past + i));
    }
  const auto T = static_cast<int64_t>(rows.size());
  return {runs, rank.tensor<int32_t>({T}, rows), rank.tensor<int32_t>({T}, positions)};
}

}  // namespace witan::testing
