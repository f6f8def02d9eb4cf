// Splits one dataset into training and validation (held-out) documents.
#pragma once

#include <cstdint>
#include <memory>

#include "witan/base/numbers/rng.h"
#include "witan/data/datasets/token_dataset.h"

namespace witan {

// The default of a run, and of `witan data`.
inline constexpr double kHeldOutFraction = 0.01;

struct SplitOptions {
  double held_out_fraction = kHeldOutFraction;  // of the tokens, in (0, 1)
  int64_t least_tokens = 2;                     // each split gets at least this many (for example one sample)
  uint64_t seed = 1234;

  bool operator==(const SplitOptions&) const = default;
};

struct Split {
  std::shared_ptr<const TokenDataset> train, held_out;
};

// Documents are drawn in a random order, a pure function of (seed, number of documents), until the validation split has
// its tokens. The last one is taken whole, unless it alone would make that split more than twice too large (for example
// in a corpus of one document): then only its tail is, and the rest is trained on, the only case in which a document is
// in both. Conversations are always whole, and least_tokens does not count for them. Both splits are views: no token is
// copied, no list stored. Throws DataError if the dataset has fewer than 2
// * least_tokens tokens; ConfigError for the options.
Split split_documents(std::shared_ptr<const TokenDataset> dataset, const SplitOptions& options);

}  // namespace witan
