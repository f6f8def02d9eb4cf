#include "witan/tokenizer/text/bert.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "witan/tokenizer/text/unicode.h"

namespace witan {
namespace {

using Range = std::pair<int32_t, int32_t>;

// Punctuation, nonspacing marks and control characters that Unicode 9.0 added.
constexpr std::array<Range, 35> kSinceUnicode9 = {{{0x8D4, 0x8E2},
                                                   {0x1885, 0x1886},
                                                   {0x1DFB, 0x1DFB},
                                                   {0x2E43, 0x2E44},
                                                   {0xA8C5, 0xA8C5},
                                                   {0xA9BD, 0xA9BD},
                                                   {0x1123E, 0x1123E},
                                                   {0x11438, 0x1143F},
                                                   {0x11442, 0x11444},
                                                   {0x11446, 0x11446},
                                                   {0x1144B, 0x1144F},
                                                   {0x1145B, 0x1145B},
                                                   {0x1145D, 0x1145D},
                                                   {0x11660, 0x1166C},
                                                   {0x11C30, 0x11C36},
                                                   {0x11C38, 0x11C3D},
                                                   {0x11C3F, 0x11C3F},
                                                   {0x11C41, 0x11C45},
                                                   {0x11C70, 0x11C71},
                                                   {0x11C92, 0x11CA7},
                                                   {0x11CAA, 0x11CB0},
                                                   {0x11CB2, 0x11CB3},
                                                   {0x11CB5, 0x11CB6},
                                                   {0x1E000, 0x1E006},
                                                   {0x1E008, 0x1E018},
                                                   {0x1E01B, 0x1E021},
                                                   {0x1E023, 0x1E024},
                                                   {0x1E026, 0x1E02A},
                                                   {0x1E944, 0x1E94A},
                                                   {0x1E95E, 0x1E95F},
                                                   // These had another category in Unicode 8.0.
                                                   {0x166D, 0x166D},
                                                   {0x1734, 0x1734},
                                                   {0x1171E, 0x1171E},
                                                   {0x111C9, 0x111C9},
                                                   {0x1CF2, 0x1CF3}}};

bool within(const auto& ranges, int32_t c) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const Range& range) { return range.first <= c && c <= range.second; });
}

// The characters with one of these properties in Unicode 8.0 (or 9.0), and `more`.
std::vector<bool> table_of_old(std::initializer_list<std::string_view> properties, bool unicode_8,
                               std::vector<int32_t> more) {
  std::vector<bool> table(kCodePoints);
  for (const std::string_view property : properties) {
    const CharacterRanges ranges = characters_with(property).value();
    for (const auto& [first, last] : ranges)
      for (int32_t c = first; c <= last; ++c)
        table[static_cast<size_t>(c)] = is_in_unicode_9(c) && !(unicode_8 && within(kSinceUnicode9, c));
  }
  for (const int32_t c : more) table[static_cast<size_t>(c)] = true;
  return table;
}

bool is_punctuation(int32_t c) {
  static const std::vector<bool> table =
      table_of_old({"P"}, true, {'$', '+', '<', '=', '>', '^', '`', '|', '~', 0x166D, 0x111C9});
  return table[static_cast<size_t>(c)];
}

bool is_nonspacing_mark(int32_t c) {
  static const std::vector<bool> table = table_of_old({"Mn"}, true, {0x1734, 0x1171E});
  return table[static_cast<size_t>(c)];
}

bool is_mark(int32_t c) {
  static const std::vector<bool> table = table_of_old({"M"}, false, {0x1CF2, 0x1CF3});
  return table[static_cast<size_t>(c)] && c != 0x111C9;
}

bool is_dropped_control(int32_t c) {
  static const std::vector<bool> table = table_of_old({"Cc", "Cf", "Co"}, true, {0xFFFD});
  return table[static_cast<size_t>(c)] && c != '\t' && c != '\n' && c != '\r';
}

// Like the reference, the sixth range begins at 2B920 instead of 2B820.
bool is_chinese(int32_t c) {
  static constexpr std::array<Range, 8> kRanges = {{{0x4E00, 0x9FFF},
                                                    {0x3400, 0x4DBF},
                                                    {0x20000, 0x2A6DF},
                                                    {0x2A700, 0x2B73F},
                                                    {0x2B740, 0x2B81F},
                                                    {0x2B920, 0x2CEAF},
                                                    {0xF900, 0xFAFF},
                                                    {0x2F800, 0x2FA1F}}};
  return c >= 0x3400 && within(kRanges, c);
}

// Calls `each(character, its bytes)`; for a byte that is not valid UTF-8 the character is -1.
template <class Each>
void each_character(std::string_view text, Each each) {
  for (size_t at = 0; at < text.size();) {
    const std::string_view here = text.substr(at, character_length(text.substr(at)));
    const int32_t c = first_character(here);
    each(here.size() == 1 && c >= 0x80 ? -1 : c, here);
    at += here.size();
  }
}

template <class Drops>
std::string kept(std::string_view text, Drops drops) {
  std::string out;
  out.reserve(text.size());
  each_character(text, [&](int32_t c, std::string_view bytes) {
    if (c < 0 || !drops(c)) out += bytes;
  });
  return out;
}

template <class Matches>
void match_each(std::string_view text, Matches matches, const MatchSink& sink) {
  size_t done = 0;
  each_character(text, [&](int32_t c, std::string_view bytes) {
    if (c < 0 || !matches(c)) return;
    const auto at = static_cast<size_t>(bytes.data() - text.data());
    if (at > done) sink(text.substr(done, at - done), false);
    sink(bytes, true);
    done = at + bytes.size();
  });
  if (done < text.size()) sink(text.substr(done), false);
}

}  // namespace

std::string clean_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  each_character(text, [&](int32_t c, std::string_view bytes) {
    if (c >= 0 && is_dropped_control(c)) return;
    out += c >= 0 && is_white_space(c) ? std::string_view(" ") : bytes;
  });
  return out;
}

std::string pad_chinese_characters(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  each_character(text, [&](int32_t c, std::string_view bytes) {
    const bool isolated = is_chinese(c);
    if (isolated) out += ' ';
    out += bytes;
    if (isolated) out += ' ';
  });
  return out;
}

std::string strip_nonspacing_marks(std::string_view text) {
  return kept(text, is_nonspacing_mark);
}

std::string strip_marks(std::string_view text) {
  return kept(text, is_mark);
}

void match_punctuation(std::string_view text, const MatchSink& sink) {
  match_each(text, is_punctuation, sink);
}

void match_white_space(std::string_view text, const MatchSink& sink) {
  match_each(text, is_white_space, sink);
}

void match_words(std::string_view text, const MatchSink& sink) {
  enum class Class { space, word, other };
  size_t begin = 0;
  Class run = Class::space;
  const auto flush = [&](size_t end) {
    if (end > begin) sink(text.substr(begin, end - begin), run != Class::space);
    begin = end;
  };
  each_character(text, [&](int32_t c, std::string_view bytes) {
    const Class one = c < 0                  ? Class::other
                      : is_white_space(c)    ? Class::space
                      : is_word_character(c) ? Class::word
                                             : Class::other;
    if (one != run) flush(static_cast<size_t>(bytes.data() - text.data()));
    run = one;
  });
  flush(text.size());
}

}  // namespace witan
