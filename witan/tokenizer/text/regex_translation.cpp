#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/text/regex_splitter.h"
#include "witan/tokenizer/text/unicode.h"

namespace witan {
namespace {

constexpr size_t kRegexLimit = 64 << 10;      // published patterns are below 1 KiB
constexpr size_t kTranslatedLimit = 8 << 20;  // some 500 properties as large as \p{L}

// Characters of \w that [[:word:]], and \w inside brackets, lack: there Oniguruma uses a table of its own for Latin-1.
constexpr std::array<std::pair<int32_t, int32_t>, 3> kNoWordInBrackets = {{{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}}};

constexpr std::array<std::pair<int32_t, int32_t>, 1> kSurrogates = {{{0xD800, 0xDFFF}}};  // not encodable in UTF-8

CharacterRanges without(const CharacterRanges& from, std::span<const std::pair<int32_t, int32_t>> taken) {
  CharacterRanges out;
  for (auto [first, last] : from) {
    for (const auto& [taken_first, taken_last] : taken) {
      if (taken_last < first || taken_first > last) continue;
      if (taken_first > first) out.emplace_back(first, taken_first - 1);
      first = taken_last + 1;
    }
    if (first <= last) out.emplace_back(first, last);
  }
  return out;
}

std::string characters(const CharacterRanges& ranges) {
  const auto put = [](std::string& out, int32_t c) {
    std::array<char, 16> text{};
    out.append(text.data(), static_cast<size_t>(std::snprintf(text.data(), text.size(), "\\x{%X}", c)));
  };
  std::string out;
  for (const auto& [first, last] : ranges) {
    put(out, first);
    if (last == first) continue;
    out += '-';
    put(out, last);
  }
  return out;
}

// One pass over the expression. It interprets escapes, brackets and groups only, and copies the rest.
class Translation {
 public:
  explicit Translation(std::string_view regex) : in_(regex) {}

  std::string run() {
    if (in_.size() > kRegexLimit) refuse("a pattern of more than 64 KiB", "write a shorter one");
    if (find_invalid_utf8(in_) != std::string_view::npos) refuse("invalid UTF-8", "write it as UTF-8");
    while (at_ < in_.size()) {
      step();
      if (out_.size() > kTranslatedLimit)
        refuse("so many properties that it expands to more than 8 MiB", "write a shorter one");
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what, std::string_view way_out) const {
    throw DataError(cat("the tokenizer's pattern \"", clipped(in_, 200), "\" has ", what, " at byte ", at_,
                        ", which is not supported because its meaning may differ from Hugging Face tokenizers: ",
                        way_out, " in the tokenizer.json"));
  }

  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool follows(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  bool in_brackets() const { return !brackets_.empty(); }
  bool folded() const { return folded_.back(); }
  void copy(size_t bytes) {
    out_ += in_.substr(at_, bytes);
    at_ = std::min(at_ + bytes, in_.size());
  }

  void step() {
    const char c = peek();
    if (c == '\\') return escape();
    if (folded() && (c & 0x80))
      refuse("non-ASCII characters in a case-insensitive group", "spell out both cases without (?i)");
    if (in_brackets()) return bracket_step(c);
    if (c == '[') return open_bracket();
    if (c == '(') return open_group();
    if (c == ')' && folded_.size() > 1) folded_.pop_back();
    copy(1);
  }

  void bracket_step(char c) {
    if (follows("[:")) return posix();
    if (c == '[') return open_bracket();
    if (c == ']') {
      brackets_.pop_back();
    } else if (follows("&&")) {
      copy(2);
      brackets_.back() = at_;
      return;
    }
    copy(1);
  }

  void open_bracket() {
    copy(1);
    if (peek() == '^') copy(1);
    if (peek() == ']') refuse("a bracket that starts with ]", "write \\]");
    if (brackets_.size() == 200) refuse("brackets nested 200 deep", "write a flatter one");
    brackets_.push_back(at_);
  }

  void open_group() {
    if (follows("(*") || follows("(?{")) refuse("a callout", "remove it");
    if (follows("(?#")) {
      const size_t end = in_.find(')', at_);
      return copy(end == std::string_view::npos ? in_.size() - at_ : end + 1 - at_);
    }
    size_t end = at_ + 2;
    bool on = true, fold = folded();
    if (follows("(?")) {
      for (; end < in_.size() && (std::isalpha(static_cast<unsigned char>(in_[end])) || in_[end] == '-'); ++end) {
        if (in_[end] == '-') on = false;
        if (in_[end] == 'i') fold = on;
      }
      if (follows("(?y{")) refuse("the option y", "remove it");
    }
    const bool options = follows("(?") && end < in_.size() && end > at_ + 2 && (in_[end] == ':' || in_[end] == ')');
    if (!options) {
      folded_.push_back(folded());
      return copy(1);
    }
    const std::string_view letters = in_.substr(at_ + 2, end - at_ - 2);
    if (const size_t other = letters.find_first_not_of("im-"); other != std::string_view::npos)
      refuse(cat("the option ", letters[other]), "remove it");
    if (in_[end] == ':')
      folded_.push_back(fold);
    else
      folded_.back() = fold;  // to the end of the group
    copy(end + 1 - at_);
  }

  void posix() {
    const size_t end = in_.find(":]", at_ + 2);
    std::string_view name = end == std::string_view::npos ? "" : in_.substr(at_ + 2, end - at_ - 2);
    const bool inverted = name.starts_with('^');
    if (inverted) name.remove_prefix(1);
    static constexpr std::array<std::string_view, 14> kNames = {"alnum", "alpha", "ascii", "blank", "cntrl",
                                                                "digit", "graph", "lower", "print", "punct",
                                                                "space", "upper", "word",  "xdigit"};
    if (std::find(kNames.begin(), kNames.end(), name) == kNames.end())
      refuse("[: that begins no POSIX bracket", "write \\[ or \\:");
    put_property(end + 2, name == "punct" ? "posixpunct" : name == "word" ? "wordinbrackets" : name, inverted);
  }

  void escape() {
    const char c = peek(1);
    switch (c) {
      case 'p':
      case 'P':
        if (peek(2) == '{') return property(c == 'P');
        break;
      case 'w':
      case 'W':
        return put_property(at_ + 2, in_brackets() ? "wordinbrackets" : "word", c == 'W');
      case 'd':
      case 'D':
        return put_property(at_ + 2, "nd", c == 'D');
      case 's':
      case 'S':
        return put_property(at_ + 2, "space", c == 'S');
      case 'b':
      case 'B':
        if (!in_brackets()) return word_boundary(c == 'B');
        break;
      case 'R':
        if (!in_brackets()) refuse("\\R (any line break)", "write (?:\\r\\n|[\\n-\\r\\x{85}\\x{2028}\\x{2029}])");
        break;
      case 'X':
      case 'y':
      case 'Y':
        if (!in_brackets()) refuse(cat("\\", c, " (grapheme clusters)"), "write the characters meant");
        break;
      case 'c':
      case 'C':
      case 'M':
        refuse(cat("\\", c, " (control and meta characters)"), "write \\x{…}");
      case 'x':
      case 'u':
      case 'o':
        if (folded()) refuse(cat("\\", c, " in a case-insensitive group"), "write the character itself");
        break;
      default:
        break;
    }
    if (folded() && (c & 0x80))
      refuse("non-ASCII characters in a case-insensitive group", "spell out both cases without (?i)");
    copy(2);
  }

  void property(bool inverted) {
    const size_t end = in_.find('}', at_);
    if (end == std::string_view::npos) refuse("\\p{ without }", "write the }");
    std::string_view name = in_.substr(at_ + 3, end - at_ - 3);
    if (name.starts_with('^')) {
      inverted = !inverted;
      name.remove_prefix(1);
    }
    put_property(end + 1, name, inverted);
  }

  const CharacterRanges& ranges_of(std::string_view name) {
    const auto [place, is_new] = known_.try_emplace(std::string(name));
    if (!is_new) return place->second;
    if (name == "wordinbrackets")
      place->second = without(characters_with("word").value(), kNoWordInBrackets);
    else if (const auto found = characters_with(name))
      place->second = without(*found, kSurrogates);
    if (place->second.empty())
      refuse(cat("the property \"", clipped(name), "\""),
             "use general categories (\\p{L}, \\p{Lu} …), scripts (\\p{Han} …) or the characters meant");
    return place->second;
  }

  // Whether these are letters of one case: folding would add the other case from tables that are not ours.
  bool has_one_case(const CharacterRanges& ranges) const {
    const auto has = [&](int32_t c) {
      return std::any_of(ranges.begin(), ranges.end(), [&](const auto& r) { return r.first <= c && c <= r.second; });
    };
    return has('a') != has('A');
  }

  // Writes the property in place of the expression up to `end`.
  void put_property(size_t end, std::string_view name, bool inverted) {
    const CharacterRanges& ranges = ranges_of(name);
    if (in_brackets()) {
      const bool after_range = at_ > brackets_.back() + 1 && in_[at_ - 1] == '-' && !ends_with_escaped_hyphen();
      const bool before_range = end + 1 < in_.size() && in_[end] == '-' && in_[end + 1] != ']';
      if (after_range || before_range) refuse("a range that starts or ends with a class of characters", "write \\-");
      if (folded() && has_one_case(ranges))
        refuse("a class of upper- or lower-case letters in a case-insensitive group", "put it outside of (?i)");
    }
    const std::string set = cat(inverted ? "[^" : "[", characters(ranges), "]");
    out_ += in_brackets() || !folded() ? set : cat("(?-i:", set, ")");
    at_ = end;
  }

  bool ends_with_escaped_hyphen() const {
    size_t backslashes = 0;
    for (size_t i = at_ - 1; i > brackets_.back() && in_[i - 1] == '\\'; --i) ++backslashes;
    return backslashes % 2 == 1;
  }

  void word_boundary(bool inverted) {
    if (std::string_view("*+?{").find(peek(2)) != std::string_view::npos)
      refuse("a repeated word boundary", "remove the repetition");
    const std::string word = cat("[", characters(ranges_of("word")), "]");
    const std::string_view is = inverted ? "!" : "=";  // the lookahead after a word character
    const std::string_view is_not = inverted ? "=" : "!";
    out_ += cat("(?:(?<=", word, ")(?", is_not, word, ")|(?<!", word, ")(?", is, word, "))");
    at_ += 2;
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  std::vector<size_t> brackets_;        // position of the first member of each open bracket
  std::vector<bool> folded_ = {false};  // whether each open group is case-insensitive
  std::map<std::string, CharacterRanges, std::less<>> known_;
};

}  // namespace

std::string with_own_unicode(std::string_view regex) {
  return Translation(regex).run();
}

}  // namespace witan
