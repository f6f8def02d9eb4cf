// Log-likelihoods of continuations: contexts and continuations as tokens, encoded as lm-evaluation-harness 0.4.13 does
// (lm_eval/api/model.py: TemplateLM.loglikelihood; lm_eval/models/huggingface.py), and computed in batches.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/generate/generation_batch.h"
#include "witan/model/transformer.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {

// The tokens of a context and its continuation, which is the last `continuation` tokens.
struct TokenPair {
  std::vector<int32_t> tokens;
  int64_t continuation = 0;
  bool truncated = false;  // the context was truncated at its beginning
};

class PairEncoder {
 public:
  // `hf`: the folder with the model's Hugging Face files, which gives the beginning-of-text token; may be missing.
  // `max_length`: the most tokens that the model reads; a longer context is truncated at its beginning.
  PairEncoder(const Tokenizer& tokenizer, const fs::path& hf, int64_t max_length);

  // White space at the end of the context moves to the continuation. An empty context becomes the beginning-of-text
  // token, else the end-of-text token. Throws DataError for a continuation without tokens or longer than the model
  // reads.
  TokenPair encode(std::string context, std::string continuation) const;

 private:
  std::vector<int32_t> encoded(const std::string& text) const;

  const Tokenizer& tokenizer_;
  int64_t max_length_;
  std::vector<int32_t> before_;       // tokens that the tokenizer puts before every text
  std::optional<int32_t> beginning_;  // stands for an empty context
};

struct Loglikelihood {
  double nats = 0;      // log-likelihood of the continuation, summed over its tokens
  bool greedy = false;  // greedy decoding would produce the continuation
};

struct LoglikelihoodOptions {
  int64_t batch_size = 8;  // pairs per batch
  // On a GPU the bits do not depend on the other pairs of a batch (as in generate/generation_batch.h). On a CPU they
  // never do.
  bool repeatable = false;
};

// The log-likelihood of each pair, in the order of `pairs`. Computes the longest pairs first, so that memory runs out
// at once or never. `progress` gets the number of finished pairs. On the meta device it allocates what a real run
// would.
std::vector<Loglikelihood> loglikelihoods(Stream& stream, Transformer& model, std::span<const TokenPair> pairs,
                                          const LoglikelihoodOptions& options,
                                          const std::function<void(size_t done)>& progress = {});

}  // namespace witan
