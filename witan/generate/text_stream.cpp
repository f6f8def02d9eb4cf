#include "witan/generate/text_stream.h"

#include <algorithm>
#include <utility>

namespace witan {
namespace {

struct Found {
  size_t begin = std::string::npos, end = std::string::npos;
};

// The stop string that ends first is the same however the text was cut into tokens; the one that begins first need not
// be.
Found find_stop(const std::string& text, const std::vector<std::string>& stops) {
  Found first;
  for (const std::string& stop : stops) {
    const size_t begin = text.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end < first.end || (end == first.end && begin < first.begin)) first = {begin, end};
  }
  return first;
}

// The length of the longest suffix of `text` that is a proper prefix of a stop string.
size_t possible_beginning(std::string_view text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops)
    for (size_t length = std::min(stop.size() - 1, text.size()); length > longest; --length)
      if (text.ends_with(std::string_view(stop).substr(0, length))) longest = length;
  return longest;
}

}  // namespace

int64_t count_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
}

TextStream::TextStream(Tokenizer tokenizer, std::vector<std::string> stops)
    : decoder_(std::move(tokenizer)), stops_(std::move(stops)) {
  std::erase(stops_, "");
}

std::string TextStream::release(const std::string& decoded) {
  characters_ += count_characters(decoded);
  std::string text = std::exchange(withheld_, {}) + decoded;
  const Found stop = find_stop(text, stops_);
  if (stop.begin != std::string::npos) {
    stopped_ = true;
    return text.substr(0, stop.begin);
  }
  const size_t certain = text.size() - possible_beginning(text, stops_);
  withheld_ = text.substr(certain);
  text.resize(certain);
  return text;
}

std::string TextStream::push(int32_t id) {
  return stopped_ ? "" : release(decoder_.push(id));
}

std::string TextStream::flush() {
  if (stopped_) return "";
  const std::string text = release(decoder_.flush());
  return text + std::exchange(withheld_, {});
}

}  // namespace witan
