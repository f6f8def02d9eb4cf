#include "witan/tokenizer/streaming_decoder.h"

#include <algorithm>
#include <utility>

#include "witan/base/text.h"

namespace witan {

size_t incomplete_utf8_suffix(std::string_view text) {
  // The continuation bytes that could complete some beginning: these two bounds hold for every second byte.
  constexpr std::string_view endings[] = {"\x80", "\xBF", "\x80\x80", "\xBF\x80", "\x80\x80\x80", "\xBF\x80\x80",
                                          "\x90\x80\x80", "\x8F\x80\x80", "\xA0\x80", "\x9F\x80"};
  for (size_t length = 1; length <= std::min<size_t>(3, text.size()); ++length) {
    const std::string beginning(text.substr(text.size() - length));
    if (static_cast<unsigned char>(beginning[0]) < 0xC2) continue;
    for (const std::string_view ending : endings)
      if (find_invalid_utf8(beginning + std::string(ending)) == std::string::npos) return length;
    return 0;
  }
  return 0;
}

std::string StreamingDecoder::push(int32_t id) {
  withheld_ += tokenizer_.token_bytes(id);
  std::string text = std::exchange(withheld_, {});
  withheld_ = text.substr(text.size() - incomplete_utf8_suffix(text));
  text.resize(text.size() - withheld_.size());
  return replace_invalid_utf8(text);
}

std::string StreamingDecoder::flush() { return replace_invalid_utf8(std::exchange(withheld_, {})); }

}  // namespace witan
