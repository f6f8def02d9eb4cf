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
    // Behind a valid second byte any continuation will do; behind an invalid one none.
    const std::string completed = std::string(beginning) + std::string(whole - length, '\x80');
    return find_invalid_utf8(completed) == std::string::npos ? length : 0;
  }
  return 0;
}

std::string StreamingDecoder::push(int32_t id) {
  withheld_ += tokenizer_.token_bytes(id);
  std::string text = std::exchange(withheld_, {});
  for (; spaces_ > 0 && text.starts_with(' '); --spaces_) text.erase(0, 1);
  if (!text.empty()) spaces_ = 0;
  withheld_ = text.substr(text.size() - incomplete_utf8_suffix(text));
  text.resize(text.size() - withheld_.size());
  return replace_invalid_utf8(text);
}

std::string StreamingDecoder::flush() {
  return replace_invalid_utf8(std::exchange(withheld_, {}));
}

}  // namespace witan
