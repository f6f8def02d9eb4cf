// Converts tokens of a character-level vocabulary to text: the decoder of a tokenizer.json.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "witan/tokenizer/text/regex_splitter.h"

namespace witan {

// One step of the decoder of a character-level vocabulary, in the terms of a tokenizer.json.
struct DecoderStep {
  // replace: `pattern` by `content`. strip: up to `start` and `stop` times `pattern` from the ends of each token.
  // metaspace: `pattern` stands for a space. word_piece: the prefix `pattern` marks tokens within a word.
  // byte_fallback: <0x0A> is the byte 10. fuse: joins all tokens. join: puts a space between tokens.
  enum class Kind { replace, strip, metaspace, word_piece, byte_fallback, fuse, join };
  Kind kind = Kind::fuse;
  std::string pattern = {}, content = {};
  bool regex = false;     // replace: `pattern` is a regular expression
  bool prepends = false;  // metaspace: encoding put one before the text
  bool cleanup = false;   // word_piece: no spaces before punctuation
  int64_t start = 0, stop = 0;
  bool operator==(const DecoderStep&) const = default;
};

// Immutable: its methods may be called from several threads.
class Decoder {
 public:
  // Throws DataError for a regular expression that does not compile.
  explicit Decoder(const std::vector<DecoderStep>& steps);

  // Whether each token can be decoded on its own: the text is the concatenation of piece() of all tokens, without
  // leading_spaces(). This holds for the decoders of all published language models. Others need all tokens at once: for
  // example, if tokens are joined by spaces, a byte token is a character only without a neighbour.
  bool by_token() const { return by_token_; }
  // The bytes of one token, where by_token(); `first`: it is the first token of the text. Otherwise an approximation.
  std::string piece(std::string_view token, bool first) const;
  // If by_token(): the number of leading spaces removed from the text, if it has that many.
  size_t leading_spaces() const { return leading_spaces_; }

  // Decodes all tokens of a text, whatever the steps. Each byte of ByteFallback that is not valid UTF-8 becomes U+FFFD.
  std::string decode(std::vector<std::string> tokens) const;

 private:
  struct Step {
    DecoderStep step;
    std::shared_ptr<const RegexSplitter> regex;
    std::string apply(std::string_view token, bool first) const;  // for kinds that act on one token at a time
  };

  std::vector<Step> steps_;
  bool by_token_ = true;
  size_t leading_spaces_ = 0;
};

}  // namespace witan
