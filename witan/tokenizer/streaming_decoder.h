// Converts tokens to text while they are generated. A token may end in the middle of a character, so the last few bytes
// are withheld until the character is complete.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "witan/tokenizer/tokenizer.h"

namespace witan {

class StreamingDecoder {
 public:
  // `begins_text`: the first token is the first of its text, and is decoded as such (Tokenizer::decode()).
  explicit StreamingDecoder(Tokenizer tokenizer, bool begins_text = false)
      : tokenizer_(std::move(tokenizer)),
        begins_text_(begins_text),
        spaces_(begins_text ? tokenizer_.leading_spaces() : 0) {}

  // The text that this token completes: valid UTF-8, with U+FFFD for bytes that can never become a character.
  // Throws DataError for an id outside the vocabulary.
  std::string push(int32_t id);
  // The rest at the end, an incomplete character as U+FFFD.
  std::string flush();

 private:
  std::string push_whole(int32_t id);

  Tokenizer tokenizer_;
  bool begins_text_;
  size_t spaces_;                // leading spaces still to be removed
  std::string withheld_;         // the start of one character: at most 3 bytes
  std::vector<int32_t> tokens_;  // all tokens, unless Tokenizer::decodes_by_token()
  size_t shown_ = 0;             // bytes of their text that were returned
};

// The number of bytes at the end of `text` that start a UTF-8 character without completing it.
size_t incomplete_utf8_suffix(std::string_view text);

}  // namespace witan
