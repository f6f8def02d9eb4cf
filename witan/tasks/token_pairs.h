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

}  // namespace witan
