#include "witan/tokenizer/text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "witan/tokenizer/text/unicode.h"

namespace witan {
namespace {

// The last character of a non-empty text.
int32_t last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && text.size() - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return first_character(text.substr(begin));
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  return (begin == 0 || !is_word_character(last_character(text.substr(0, begin)))) &&
         (end == text.size() || !is_word_character(first_character(text.substr(end))));
}

size_t skip_white_space_before(std::string_view text, size_t begin, size_t from) {
  while (begin > from) {
    size_t previous = begin - 1;
    while (previous > from && (static_cast<unsigned char>(text[previous]) & 0xC0) == 0x80) --previous;
    if (!is_white_space(first_character(text.substr(previous, begin - previous)))) break;
    begin = previous;
  }
  return begin;
}

size_t skip_white_space_after(std::string_view text, size_t end) {
  while (end < text.size() && is_white_space(first_character(text.substr(end))))
    end += character_length(text.substr(end));
  return end;
}

enum class Overlap { none, part, all };

// How much of [begin, end) the spans cover.
Overlap overlap_of(size_t begin, size_t end, std::span<const TextSpan> spans) {
  const auto span = std::ranges::upper_bound(spans, begin, {}, &TextSpan::end);
  if (span == spans.end() || span->begin >= end) return Overlap::none;
  return span->begin <= begin && span->end >= end ? Overlap::all : Overlap::part;
}

}  // namespace

void AddedTokenMatcher::add(std::string text, const AddedToken& token) {
  if (text.empty()) return;
  (token.special ? any_special_ : any_ordinary_) = true;
  if (first_bytes_.find(text[0]) == std::string::npos) first_bytes_ += text[0];
  const auto first = static_cast<uint8_t>(text[0]);
  if (text.size() == 1)
    second_bytes_[first].set();
  else
    second_bytes_[first].set(static_cast<uint8_t>(text[1]));
  auto& tokens = by_first_byte_[first];
  const auto shorter =
      std::find_if(tokens.begin(), tokens.end(), [&](const Token& other) { return other.text.size() < text.size(); });
  tokens.insert(shorter, {std::move(text), token.id, token.special, token.single_word, token.lstrip, token.rstrip});
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::find(std::string_view text, size_t from, size_t done,
                                                                bool allow_special,
                                                                std::span<const TextSpan> literal) const {
  if (!any_ordinary_ && !(any_special_ && allow_special)) return std::nullopt;
  // In nearly all vocabularies all added tokens start with the same byte, which memchr finds faster than any loop.
  const auto next = [&](size_t at) {
    if (first_bytes_.size() == 1) return text.find(first_bytes_[0], at);
    while (at < text.size() && by_first_byte_[static_cast<uint8_t>(text[at])].empty()) ++at;
    return at;
  };
  for (size_t i = next(from); i < text.size(); i = next(i + 1)) {
    const auto lead = static_cast<uint8_t>(text[i]);
    if (!second_bytes_[lead][i + 1 < text.size() ? static_cast<uint8_t>(text[i + 1]) : 0]) continue;
    for (const Token& token : by_first_byte_[lead]) {
      if (text.substr(i, token.text.size()) != token.text) continue;
      const size_t end = i + token.text.size();
      const Overlap overlap = token.special ? overlap_of(i, end, literal) : Overlap::none;
      if (overlap == Overlap::part) continue;  // a shorter token may end before the literal text
      if ((token.special && (!allow_special || overlap == Overlap::all)) ||
          (token.single_word && !stands_alone(text, i, end))) {
        i = end - 1;  // like the reference, skips all tokens inside the match
        break;
      }
      const size_t first = token.lstrip ? skip_white_space_before(text, i, done) : i;
      return Match{first, token.rstrip ? skip_white_space_after(text, end) : end, end, token.id};
    }
  }
  return std::nullopt;
}

}  // namespace witan
