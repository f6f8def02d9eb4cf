// The text of one generation as it can be shown: decoded token by token, and cut before the first stop string, wherever
// token boundaries lie.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "witan/tokenizer/tokenizer.h"

namespace witan {

class TextStream {
 public:
  // If several stop strings match, the one completed first counts, and of those the longest. Empty ones are ignored.
  TextStream(Tokenizer tokenizer, std::vector<std::string> stops);

  // The text that is certain after this token: valid UTF-8 without a possible beginning of a stop string. Empty once a
  // stop string was found. Throws DataError for an id outside the vocabulary.
  std::string push(int32_t id);
  // The remaining text after the last token.
  std::string flush();
  // Whether a stop string was found; neither it nor what follows it is part of the text.
  bool stopped() const { return stopped_; }
  // Characters (code points) that the tokens so far have completed, shown or not.
  int64_t characters() const { return characters_; }

 private:
  std::string release(const std::string& decoded);

  StreamingDecoder decoder_;
  std::vector<std::string> stops_;
  std::string withheld_;  // a possible beginning of a stop string
  bool stopped_ = false;
  int64_t characters_ = 0;
};

// The number of code points in valid UTF-8.
int64_t count_characters(std::string_view text);

}  // namespace witan
