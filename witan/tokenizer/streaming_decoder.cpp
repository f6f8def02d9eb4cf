#include "witan/tokenizer/streaming_decoder.h"

#include <algorithm>
#include <utility>

#include "witan/base/text.h"

namespace witan {

size_t incomplete_utf8_suffix(std::string_view text) {
  for (size_t length = 1; length <= std::min<size_t>(3, text.size()); ++length) {
    const std::string_view beginning = text.substr(text.size() - length);
    const auto lead = static_cast<unsigned char>(beginning[0]);
    if ((lead & 0xC0) == 0x80) continue;  // a continuation byte: look further back
    const size_t whole = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || length >= whole) return 0;
    if (length == 1) return 1;
    // After a valid second byte any continuation is valid; after an invalid one none is.
    const std::string completed = std::string(beginning) + std::string(whole - length, '\x80');
    return find_invalid_utf8(completed) == std::string::npos ? length : 0;
  }
  return 0;
}

std::string StreamingDecoder::push(int32_t id) {
  if (!tokenizer_.decodes_by_token()) return push_whole(id);
  const bool first = std::exchange(begins_text_, begins_text_ && !tokenizer_.has_token(id));
  withheld_ += first ? tokenizer_.first_token_bytes(id) : std::string(tokenizer_.token_bytes(id));
  std::string text = std::exchange(withheld_, {});
  for (; spaces_ > 0 && text.starts_with(' '); --spaces_) text.erase(0, 1);
  if (!text.empty()) spaces_ = 0;
  withheld_ = text.substr(text.size() - incomplete_utf8_suffix(text));
  text.resize(text.size() - withheld_.size());
  return replace_invalid_utf8(text);
}

// Returns new text of all tokens so far, except for last characters that further tokens may change.
std::string StreamingDecoder::push_whole(int32_t id) {
  tokens_.push_back(id);
  const std::string text = replace_invalid_utf8(tokenizer_.decode(tokens_));
  std::string_view shown = text;
  while (shown.ends_with("\uFFFD")) shown.remove_suffix(3);
  if (shown.size() <= shown_) return {};
  return std::string(shown.substr(std::exchange(shown_, shown.size())));
}

std::string StreamingDecoder::flush() {
  if (!tokens_.empty()) {
    const std::string text = replace_invalid_utf8(tokenizer_.decode(std::exchange(tokens_, {})));
    return text.substr(std::min(std::exchange(shown_, 0), text.size()));
  }
  return replace_invalid_utf8(std::exchange(withheld_, {}));
}

}  // namespace witan
