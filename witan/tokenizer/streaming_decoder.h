// Turns tokens into text as they are generated. A token may end in the middle of a character, so the last few bytes are
// withheld until they make a whole one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "witan/tokenizer/tokenizer.h"

namespace witan {

class StreamingDecoder {
 public:
  explicit StreamingDecoder(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  // The text that became certain with this token: valid UTF-8, with U+FFFD for bytes that can never become a character.
  // Throws DataError for an id outside the vocabulary.
  std::string push(int32_t id);
  // What is left at the end, an incomplete character as U+FFFD.
  std::string flush();

 private:
  Tokenizer tokenizer_;
  std::string withheld_;  // the beginning of one character: at most 3 bytes
};

// The number of bytes at the end of `text` that begin a character of UTF-8 without finishing it.
size_t incomplete_utf8_suffix(std::string_view text);

}  // namespace witan
