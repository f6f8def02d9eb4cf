#include "witan/tokenizer/text/unicode.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <string>
#include <vector>

namespace witan {
namespace {

#include "witan/tokenizer/text/unicode_tables.inc"

constexpr uint32_t bit(Category category) {
  return uint32_t{1} << static_cast<int>(category);
}
template <class... Categories>
constexpr uint32_t bits(Categories... categories) {
  return (bit(categories) | ...);
}

struct CategoryName {
  std::string_view name;
  uint32_t categories;
};

constexpr uint32_t kCased = bits(Category::kLu, Category::kLl, Category::kLt);
constexpr uint32_t kLetters = kCased | bits(Category::kLm, Category::kLo);
constexpr uint32_t kMarks = bits(Category::kMn, Category::kMc, Category::kMe);
constexpr uint32_t kNumbers = bits(Category::kNd, Category::kNl, Category::kNo);
constexpr uint32_t kPunctuation =
    bits(Category::kPc, Category::kPd, Category::kPs, Category::kPe, Category::kPi, Category::kPf, Category::kPo);
constexpr uint32_t kSymbols = bits(Category::kSm, Category::kSc, Category::kSk, Category::kSo);
constexpr uint32_t kSeparators = bits(Category::kZs, Category::kZl, Category::kZp);
constexpr uint32_t kOthers = bits(Category::kCc, Category::kCf, Category::kCs, Category::kCo, Category::kCn);
constexpr uint32_t kAll = kLetters | kMarks | kNumbers | kPunctuation | kSymbols | kSeparators | kOthers;

// Oniguruma's names.
constexpr CategoryName kCategoryNames[] = {
    {"any", kAll},
    {"assigned", kAll & ~bit(Category::kCn)},
    {"l", kLetters},
    {"letter", kLetters},
    {"lc", kCased},
    {"casedletter", kCased},
    {"lu", bit(Category::kLu)},
    {"uppercaseletter", bit(Category::kLu)},
    {"ll", bit(Category::kLl)},
    {"lowercaseletter", bit(Category::kLl)},
    {"lt", bit(Category::kLt)},
    {"titlecaseletter", bit(Category::kLt)},
    {"lm", bit(Category::kLm)},
    {"modifierletter", bit(Category::kLm)},
    {"lo", bit(Category::kLo)},
    {"otherletter", bit(Category::kLo)},
    {"m", kMarks},
    {"mark", kMarks},
    {"combiningmark", kMarks},
    {"mn", bit(Category::kMn)},
    {"nonspacingmark", bit(Category::kMn)},
    {"mc", bit(Category::kMc)},
    {"spacingmark", bit(Category::kMc)},
    {"me", bit(Category::kMe)},
    {"enclosingmark", bit(Category::kMe)},
    {"n", kNumbers},
    {"number", kNumbers},
    {"nd", bit(Category::kNd)},
    {"decimalnumber", bit(Category::kNd)},
    {"digit", bit(Category::kNd)},
    {"nl", bit(Category::kNl)},
    {"letternumber", bit(Category::kNl)},
    {"no", bit(Category::kNo)},
    {"othernumber", bit(Category::kNo)},
    {"p", kPunctuation},
    {"punctuation", kPunctuation},
    {"pc", bit(Category::kPc)},
    {"connectorpunctuation", bit(Category::kPc)},
    {"pd", bit(Category::kPd)},
    {"dashpunctuation", bit(Category::kPd)},
    {"ps", bit(Category::kPs)},
    {"openpunctuation", bit(Category::kPs)},
    {"pe", bit(Category::kPe)},
    {"closepunctuation", bit(Category::kPe)},
    {"pi", bit(Category::kPi)},
    {"initialpunctuation", bit(Category::kPi)},
    {"pf", bit(Category::kPf)},
    {"finalpunctuation", bit(Category::kPf)},
    {"po", bit(Category::kPo)},
    {"otherpunctuation", bit(Category::kPo)},
    {"s", kSymbols},
    {"symbol", kSymbols},
    {"sm", bit(Category::kSm)},
    {"mathsymbol", bit(Category::kSm)},
    {"sc", bit(Category::kSc)},
    {"currencysymbol", bit(Category::kSc)},
    {"sk", bit(Category::kSk)},
    {"modifiersymbol", bit(Category::kSk)},
    {"so", bit(Category::kSo)},
    {"othersymbol", bit(Category::kSo)},
    {"z", kSeparators},
    {"separator", kSeparators},
    {"zs", bit(Category::kZs)},
    {"spaceseparator", bit(Category::kZs)},
    {"zl", bit(Category::kZl)},
    {"lineseparator", bit(Category::kZl)},
    {"zp", bit(Category::kZp)},
    {"paragraphseparator", bit(Category::kZp)},
    {"c", kOthers},
    {"other", kOthers},
    {"cc", bit(Category::kCc)},
    {"control", bit(Category::kCc)},
    {"cntrl", bit(Category::kCc)},
    {"cf", bit(Category::kCf)},
    {"format", bit(Category::kCf)},
    {"co", bit(Category::kCo)},
    {"privateuse", bit(Category::kCo)},
    {"cn", bit(Category::kCn)},
    {"unassigned", bit(Category::kCn)},
};

constexpr size_t kRunCount = std::size(kRuns);

int32_t end_of(size_t run) {
  return run + 1 < kRunCount ? kRuns[run + 1].first : kCodePoints;
}

template <class Holds>
CharacterRanges ranges_where(Holds holds) {
  CharacterRanges ranges;
  for (size_t run = 0; run < kRunCount; ++run) {
    if (!holds(kKinds[kRuns[run].kind])) continue;
    if (!ranges.empty() && ranges.back().second + 1 == kRuns[run].first)
      ranges.back().second = end_of(run) - 1;
    else
      ranges.emplace_back(kRuns[run].first, end_of(run) - 1);
  }
  return ranges;
}

template <class Names>
auto find_name(const Names& names, std::string_view name) {
  return std::find_if(std::begin(names), std::end(names), [&](const auto& each) { return each.name == name; });
}

}  // namespace

std::optional<CharacterRanges> characters_with(std::string_view property) {
  std::string name;
  for (const char c : property)
    if (c != ' ' && c != '-' && c != '_') name += c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  if (const auto found = find_name(kCategoryNames, name); found != std::end(kCategoryNames))
    return ranges_where([&](const Kind& kind) { return (found->categories & bit(kind.category)) != 0; });
  if (const auto found = find_name(kFlagNames, name); found != std::end(kFlagNames))
    return ranges_where([&](const Kind& kind) { return (kind.flags & static_cast<uint32_t>(found->value)) != 0; });
  if (const auto found = find_name(kScriptNames, name); found != std::end(kScriptNames))
    return ranges_where([&](const Kind& kind) { return kind.script == found->value; });
  if (name == "alnum")
    return ranges_where([](const Kind& kind) { return (kind.flags & kAlpha) || kind.category == Category::kNd; });
  if (name == "posixpunct")
    return ranges_where([](const Kind& kind) { return (bit(kind.category) & (kPunctuation | kSymbols)) != 0; });
  if (name == "ascii") return CharacterRanges{{0, 0x7F}};
  return std::nullopt;
}

bool is_in_unicode_9(int32_t character) {
  static const std::vector<bool> known = [] {
    std::vector<bool> all(kCodePoints);
    for (const auto& [first, last] : ranges_where([](const Kind& kind) { return (kind.flags & kInUnicode9) != 0; }))
      std::fill(all.begin() + first, all.begin() + last + 1, true);
    return all;
  }();
  return known[static_cast<size_t>(character)];
}

namespace {

std::vector<bool> table_of(std::string_view property) {
  std::vector<bool> table(kCodePoints);
  const CharacterRanges ranges = characters_with(property).value();
  for (const auto& [first, last] : ranges) std::fill(table.begin() + first, table.begin() + last + 1, true);
  return table;
}

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

}  // namespace

size_t character_length(std::string_view text) {
  if (text.empty()) return 0;
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length <= 1) return 1;
  if (text.size() < length) return 1;
  for (size_t i = 1; i < length; ++i)
    if (!is_continuation(text[i])) return 1;
  const auto second = static_cast<unsigned char>(text[1]);
  const bool valid = (lead != 0xE0 || second >= 0xA0) && (lead != 0xED || second < 0xA0) &&
                     (lead != 0xF0 || second >= 0x90) && (lead != 0xF4 || second < 0x90);
  return valid ? length : 1;
}

int32_t first_character(std::string_view text) {
  const size_t length = character_length(text);
  const auto byte = [&](size_t i) { return static_cast<int32_t>(static_cast<unsigned char>(text[i])); };
  if (length <= 1) return length == 0 ? 0 : byte(0);
  int32_t character = byte(0) & (0xFF >> (length + 1));
  for (size_t i = 1; i < length; ++i) character = character << 6 | (byte(i) & 0x3F);
  return character;
}

std::optional<uint8_t> byte_of_token(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : text.substr(3, 2)) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && !(c >= 'A' && c <= 'F')) return std::nullopt;
    value = value * 16 + (digit ? c - '0' : c - 'A' + 10);
  }
  return static_cast<uint8_t>(value);
}

std::string byte_token_text(uint8_t byte) {
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "<0x%02X>", byte);
  return text.data();
}

void append_character(std::string& out, int32_t c) {
  const auto put = [&](int32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else {
    if (c < 0x10000) {
      put(0xE0 | c >> 12);
    } else {
      put(0xF0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3F));
    }
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    out.append(text.substr(done, at - done)).append(to);
    done = at + from.size();
  }
  return out.append(text.substr(done));
}

bool is_white_space(int32_t character) {
  static const std::vector<bool> table = table_of("space");
  return table[static_cast<size_t>(character)];
}

bool is_word_character(int32_t character) {
  static const std::vector<bool> table = [] {
    std::vector<bool> word = table_of("alpha");
    for (const char* property : {"m", "nd", "pc"}) {
      const std::vector<bool> more = table_of(property);
      for (size_t c = 0; c < word.size(); ++c) word[c] = word[c] || more[c];
    }
    word[0x200C] = word[0x200D] = true;  // Join_Control
    return word;
  }();
  return table[static_cast<size_t>(character)];
}

}  // namespace witan
