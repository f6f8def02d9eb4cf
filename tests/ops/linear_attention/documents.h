// Packed documents for tests of recurrent ops.
#pragma once

#include <vector>

#include "support/rank.h"

namespace witan::testing {

// Sequence ids [B, S] of documents of these lengths in each row.
inline Tensor ids_of(Rank& rank, int64_t B, const std::vector<int64_t>& lengths) {
  std::vector<int32_t> ids;
  for (int64_t b = 0; b < B; ++b)
    for (size_t i = 0; i < lengths.size(); ++i)
      ids.insert(ids.end(), static_cast<size_t>(lengths[i]), static_cast<int32_t>(i));
  return rank.tensor<int32_t>({B, static_cast<int64_t>(ids.size()) / B}, ids);
}

}  // namespace witan::testing
