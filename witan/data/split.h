// Training and held-out documents of one dataset.
#pragma once

#include <cstdint>
#include <memory>

#include "witan/data/permutation.h"
#include "witan/data/token_dataset.h"

namespace witan {

// Unless a run, or who prepares its shards, says otherwise.
inline constexpr double kHeldOutFraction = 0.01;

struct SplitOptions {
  double held_out_fraction = kHeldOutFraction;  // of the tokens, in (0, 1)
  int64_t least_tokens = 2;                     // each part gets at least as many (a sample's, say)
  uint64_t seed = 1234;

  bool operator==(const SplitOptions&) const = default;
};

struct Split {
  std::shared_ptr<const TokenDataset> train, held_out;
};

// Documents are taken in a random order, a pure function of (seed, number of documents), until the held-out part has
// its tokens. The last one is taken whole, unless it alone would make that part more than twice too large (a corpus of
// one document, say): then its tail is held out and the rest trained on, the only case in which a document is in both.
// Both parts are views: no token is copied, no list kept.
// Throws DataError when the dataset has fewer than 2 * least_tokens tokens; ConfigError for the options.
Split split_documents(std::shared_ptr<const TokenDataset> dataset, const SplitOptions& options);

}  // namespace witan
