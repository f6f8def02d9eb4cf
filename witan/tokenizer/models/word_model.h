// The models WordPiece, which splits a word into its longest tokens from left to right, and WordLevel, in which each
// word is a token.
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
  // `spec` must outlive this.
  explicit WordModel(const TokenizerSpec& spec);
  explicit WordModel(TokenizerSpec&& spec) = delete;

  // Appends the tokens of a word, or the unknown token if the word cannot be split into tokens. Throws DataError if
  // there is no unknown token either.
  void encode(std::string_view word, std::vector<int32_t>& out) const;

 private:
  bool put_pieces(std::string_view word, std::vector<int32_t>& out) const;

  const TokenizerSpec* spec_;
  TokenMap known_;
};

}  // namespace witan
