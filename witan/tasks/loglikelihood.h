// Log-likelihoods of continuations, many at a time.
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
  double nats = 0;      // of the continuation, summed over its tokens
  bool greedy = false;  // each of them is the likeliest
};

struct LoglikelihoodOptions {
  int64_t batch_size = 8;  // pairs at a time
  // As of generation (generate/generation_batch.h): on a GPU the bits do not depend on what is beside a pair. On a CPU
  // they never do.
  bool repeatable = false;
};

// Of each pair, in their order. The longest come first, so that memory runs short at once or never. `progress` gets the
// number of pairs that are done. On the meta device it takes the memory that it will take.
std::vector<Loglikelihood> loglikelihoods(Stream& stream, Transformer& model, std::span<const TokenPair> pairs,
                                          const LoglikelihoodOptions& options,
                                          const std::function<void(size_t done)>& progress = {});

}  // namespace witan
