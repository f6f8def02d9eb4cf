#include "witan/tokenizer/text/charsmap.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "witan/base/error.h"
#include "witan/tokenizer/text/characters.h"

namespace witan {
namespace {

constexpr size_t kLongestReplacement = 512;  // Unicode needs at most 33; bounds how much a text can grow
constexpr size_t kMostRules = 32;            // SentencePiece tries at most this many prefixes

// A unit of Darts: in a leaf a value of 31 bits; else a label, whether a leaf follows, and the offset of the children.
uint32_t label_of(uint32_t unit) {
  return unit & (uint32_t{1} << 31 | 0xFF);
}
bool has_leaf(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
uint32_t offset_of(uint32_t unit) {
  return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

}  // namespace

Charsmap::Charsmap(std::string_view bytes) {
  uint32_t trie = 0;
  require<CorruptionError>(bytes.size() > sizeof trie, "the compiled character map has ", bytes.size(),
                           " bytes, too few for its header: download the tokenizer file again");
  std::memcpy(&trie, bytes.data(), sizeof trie);
  require<CorruptionError>(trie > 0 && trie % sizeof(uint32_t) == 0 && trie < bytes.size() - sizeof trie,
                           "the compiled character map declares a trie of ", trie, " bytes, but has only ",
                           bytes.size() - sizeof trie, ": download the tokenizer file again");
  units_.resize(trie / sizeof(uint32_t));
  std::memcpy(units_.data(), bytes.data() + sizeof trie, trie);
  replacements_ = bytes.substr(sizeof trie + trie);
}

std::optional<Charsmap::Rule> Charsmap::find(std::string_view text, bool first) const {
  std::optional<Rule> found;
  size_t rules = 0;
  uint32_t node = offset_of(units_[0]);
  for (size_t i = 0; i < text.size() && rules < kMostRules; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (node >= units_.size() || label_of(units_[node]) != byte) break;
    const uint32_t unit = units_[node];
    node ^= offset_of(unit);
    if (node >= units_.size()) break;
    if (!has_leaf(unit)) continue;
    const uint32_t place = units_[node] & ~(uint32_t{1} << 31);
    if (place >= replacements_.size()) continue;
    const auto here = std::string_view(replacements_).substr(place, kLongestReplacement + 1);
    const size_t end = std::min(here.find('\0'), here.size());
    if (end > kLongestReplacement) continue;
    found = Rule{i + 1, here.substr(0, end)};
    ++rules;
    if (first) break;
  }
  return found;
}

std::optional<Charsmap::Rule> Charsmap::longest(std::string_view text) const {
  return find(text, false);
}
std::optional<Charsmap::Rule> Charsmap::shortest(std::string_view text) const {
  return find(text, true);
}

std::string Charsmap::normalize_graphemes(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    size_t end = at + character_length(text.substr(at));
    utf8proc_int32_t state = 0;
    for (int32_t last = first_character(text.substr(at)); end < text.size();) {
      const int32_t next = first_character(text.substr(end));
      if (utf8proc_grapheme_break_stateful(last, next, &state)) break;
      end += character_length(text.substr(end));
      last = next;
    }
    const std::string_view grapheme = text.substr(at, end - at);
    at = end;
    if (const auto rule = grapheme.size() < 6 ? shortest(grapheme) : std::nullopt) {
      out += rule->replacement;
      continue;
    }
    for (size_t i = 0; i < grapheme.size();) {
      const std::string_view character = grapheme.substr(i, character_length(grapheme.substr(i)));
      const auto rule = shortest(character);
      out += rule ? rule->replacement : character;
      i += character.size();
    }
  }
  return out;
}

}  // namespace witan
