// The models WordPiece, whose words become the longest tokens from left to right, and WordLevel, whose words are
// tokens.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "witan/tokenizer/models/token_map.h"
#include "witan/tokenizer/models/tokenizer_spec.h"

namespace witan {

// Immutable: encode() may be called from several threads.
class WordModel {
 public:
  // `spec` must outlive it.
  explicit WordModel(const TokenizerSpec& spec);
  explicit WordModel(TokenizerSpec&& spec) = delete;

  // Appends the tokens of a word, or the unknown token for a word that is not all tokens. Throws DataError for one if
  // there is no unknown token.
  void encode(std::string_view word, std::vector<int32_t>& out) const;

 private:
  bool put_pieces(std::string_view word, std::vector<int32_t>& out) const;

  const TokenizerSpec* spec_;
  TokenMap known_;
};

}  // namespace witan
