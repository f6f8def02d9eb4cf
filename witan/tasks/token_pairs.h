// Contexts and continuations as tokens, as lm-evaluation-harness 0.4.13 encodes them (lm_eval/api/model.py:
// TemplateLM.loglikelihood; lm_eval/models/huggingface.py).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {

// Tokens of a context and of the continuation behind it, which is the last `continuation` of them.
struct TokenPair {
  std::vector<int32_t> tokens;
  int64_t continuation = 0;
  bool truncated = false;  // the context lost tokens at its beginning
};

class PairEncoder {
 public:
  // `hf`: the folder of a run with the Hugging Face files of the model, for the beginning-of-text token; it may be
  // missing. `max_length`: tokens that the model reads at most; a longer context loses its first ones.
  PairEncoder(const Tokenizer& tokenizer, const fs::path& hf, int64_t max_length);

  // White space at the end of the context belongs to the continuation. An empty context is the beginning-of-text token,
  // or that of an end of text. Throws DataError for a continuation without tokens, or longer than the model reads.
  TokenPair encode(std::string context, std::string continuation) const;

 private:
  std::vector<int32_t> encoded(const std::string& text) const;

  const Tokenizer& tokenizer_;
  int64_t max_length_;
  std::vector<int32_t> before_;       // what the tokenizer puts before every text
  std::optional<int32_t> beginning_;  // of a text whose context is empty
};

}  // namespace witan
