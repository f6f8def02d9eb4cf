// The Unigram model of tokenizer.json: words to ids as Hugging Face tokenizers gives them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "witan/tokenizer/models/token_map.h"
#include "witan/tokenizer/models/tokenizer_spec.h"
#include "witan/tokenizer/models/unigram.h"

namespace witan {

// Immutable: encode() may be called from several threads.
class UnigramModel {
 public:
  // `spec` must outlive it.
  explicit UnigramModel(const TokenizerSpec& spec);

  // Appends the tokens of one word. Throws DataError for a character without a token if there is no unknown token.
  void encode(std::string_view word, std::vector<int32_t>& out) const;

 private:
  void put_unknown(std::string_view text, std::vector<int32_t>& out) const;

  const TokenizerSpec* spec_;
  Unigram unigram_;
  TokenMap known_;
  std::vector<int32_t> byte_ids_;  // of the 256 bytes; empty if one of them has no token or there is no byte_fallback
};

}  // namespace witan
