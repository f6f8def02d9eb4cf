// Batched log-likelihoods of continuations.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "witan/generate/generation_batch.h"
#include "witan/model/transformer.h"
#include "witan/tasks/token_pairs.h"

namespace witan {

struct Loglikelihood {
  double nats = 0;      // log-likelihood of the continuation, summed over its tokens
  bool greedy = false;  // greedy decoding would produce the continuation
};

struct LoglikelihoodOptions {
  int64_t batch_size = 8;  // pairs per batch
  // As for generation (generate/generation_batch.h): on a GPU the bits do not depend on the other pairs of a batch. On
  // a CPU they never do.
  bool repeatable = false;
};

// The log-likelihood of each pair, in the order of `pairs`. Computes the longest pairs first, so that memory runs out
// at once or never. `progress` gets the number of finished pairs. On the meta device it allocates what a real run
// would.
std::vector<Loglikelihood> loglikelihoods(Stream& stream, Transformer& model, std::span<const TokenPair> pairs,
                                          const LoglikelihoodOptions& options,
                                          const std::function<void(size_t done)>& progress = {});

}  // namespace witan
