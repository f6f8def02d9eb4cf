// Makes text of tokens whose vocabulary is one of characters: the decoder of a tokenizer.json, its steps in order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "witan/tokenizer/text/regex_splitter.h"

namespace witan {

// One step of what makes text of tokens where the vocabulary is one of characters.
struct DecoderStep {
  // replace `pattern` by `content`; strip up to `start` and `stop` times `pattern` from the ends of each token;
  // metaspace: `pattern` stands for a space; word_piece: the prefix `pattern` marks tokens within a word;
  // byte_fallback: <0x0A> is the byte 10; fuse: all tokens become one; join: a space between tokens
  enum class Kind { replace, strip, metaspace, word_piece, byte_fallback, fuse, join };
  Kind kind = Kind::fuse;
  std::string pattern = {}, content = {};
  bool regex = false;     // replace: what `pattern` is
  bool prepends = false;  // metaspace: encoding puts one before the text
  bool cleanup = false;   // word_piece: no spaces before punctuation
  int64_t start = 0, stop = 0;
  bool operator==(const DecoderStep&) const = default;
};

// Immutable: its methods may be called from several threads.
class Decoder {
 public:
  // Throws DataError for a regular expression that does not compile.
  explicit Decoder(const std::vector<DecoderStep>& steps);

  // Whether the text is what every token becomes on its own, one after the other, without leading_spaces(). All
  // decoders of published language models are of this kind. Text of others is known only with all tokens: where tokens
  // of bytes are set apart, whether a byte is a character depends on whether any other stands beside it.
  bool by_token() const { return by_token_; }
  // The bytes of one token of such a text; `first`: no token stands before it. Of another: about what it adds to it.
  std::string piece(std::string_view token, bool first) const;
  // At most so many spaces at the beginning of such a text are not part of it.
  size_t leading_spaces() const { return leading_spaces_; }

  // The text of tokens, whatever the steps. Bytes of ByteFallback that are not valid UTF-8 become U+FFFD each.
  std::string text_of(std::vector<std::string> tokens) const;

 private:
  struct Step {
    DecoderStep step;
    std::shared_ptr<const RegexSplitter> regex;
    std::string apply(std::string_view token, bool first) const;  // of the kinds that look at one token at a time
  };

  std::vector<Step> steps_;
  bool by_token_ = true;
  size_t leading_spaces_ = 0;
};

}  // namespace witan
