#include "witan/tokenizer/chat/strings.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "witan/tokenizer/chat/value.h"

namespace witan::jinja {

void MarkedText::append(const MarkedText& other, size_t begin, size_t count) {
  const size_t at = bytes.size(), end = begin + count;
  bytes.append(other.bytes, begin, count);
  auto span = std::ranges::lower_bound(other.given, begin + 1, {}, &TextSpan::end);
  for (; span != other.given.end() && span->begin < end; ++span) {
    const size_t first = std::max(span->begin, begin) - begin + at, last = std::min(span->end, end) - begin + at;
    if (!given.empty() && given.back().end == first)
      given.back().end = last;
    else
      given.push_back({first, last});
  }
}

MarkedText MarkedText::part(std::string_view view) const {
  MarkedText made{{}, {}, markup};
  if (!view.empty()) made.append(*this, static_cast<size_t>(view.data() - bytes.data()), view.size());
  return made;
}

MarkedText MarkedText::remade(std::string made) const {
  MarkedText text{std::move(made), {}, markup};
  if (!given.empty() && !text.bytes.empty()) text.given = {{0, text.bytes.size()}};
  return text;
}

MarkedText escaped(const MarkedText& text) {
  if (text.markup) return text;
  MarkedText made{{}, {}, true};
  for (size_t at = 0; at < text.bytes.size();) {
    const size_t special = std::min(text.bytes.find_first_of("&<>'\"", at), text.bytes.size());
    made.append(text, at, special - at);
    if (special == text.bytes.size()) break;
    const char c = text.bytes[special];
    const std::string_view written = c == '&'    ? "&amp;"
                                     : c == '<'  ? "&lt;"
                                     : c == '>'  ? "&gt;"
                                     : c == '\'' ? "&#39;"
                                                 : "&#34;";
    made.append(text.part(std::string_view(text.bytes).substr(special, 1)).remade(std::string(written)));
    at = special + 1;
  }
  return made;
}

namespace {

// The first character and its size in bytes.
std::pair<int32_t, size_t> first_character(std::string_view text) {
  utf8proc_int32_t character = 0;
  const auto size = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                     static_cast<utf8proc_ssize_t>(text.size()), &character);
  if (size <= 0) return {-1, 1};
  return {character, static_cast<size_t>(size)};
}

size_t last_character(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

// str.isspace() for one character.
bool is_white(int32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// str.isprintable() for one character.
bool is_printable(int32_t c) {
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

bool ends_line(int32_t c) {
  return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

enum class Case { upper, title, lower };

struct CaseEntry {
  int32_t character;
  const char *upper, *title, *lower;
};
#include "witan/tokenizer/chat/case_tables.inc"

void append_character(std::string& out, int32_t character) {
  utf8proc_uint8_t bytes[4];
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(utf8proc_encode_char(character, bytes)));
}

// `one` is one character, or a byte that is not valid UTF-8.
void append_in_case(std::string& out, std::string_view one, Case to) {
  const int32_t character = first_character(one).first;
  const auto several = std::ranges::lower_bound(kSeveral, character, {}, &CaseEntry::character);
  if (character < 0)
    out += one;
  else if (several != std::end(kSeveral) && several->character == character)
    out += to == Case::upper ? several->upper : to == Case::title ? several->title : several->lower;
  else
    append_character(out, to == Case::upper   ? utf8proc_toupper(character)
                          : to == Case::title ? utf8proc_totitle(character)
                                              : utf8proc_tolower(character));
}

// Unicode's "cased" and "case-ignorable", as far as the final sigma of a Greek word requires them.
bool is_cased(int32_t c) {
  const auto category = utf8proc_category(c);
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT ||
         utf8proc_toupper(c) != c || utf8proc_tolower(c) != c;
}

bool is_case_ignorable(int32_t c) {
  constexpr std::u32string_view kMarks = U"'.:^`\u00a8\u00ad\u00b7\u2018\u2019\u2024\u2027";
  const auto category = utf8proc_category(c);
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_ME || category == UTF8PROC_CATEGORY_CF ||
         category == UTF8PROC_CATEGORY_LM || category == UTF8PROC_CATEGORY_SK ||
         kMarks.find(static_cast<char32_t>(c)) != kMarks.npos;
}

// Whether the sigma at [at, at + 2) ends a word: a cased character precedes it, and none follows.
bool is_final_sigma(std::string_view text, size_t at) {
  size_t before = at;
  bool cased = false;
  while (before > 0) {
    before = last_character(text.substr(0, before));
    const int32_t c = first_character(text.substr(before)).first;
    if (is_case_ignorable(c)) continue;
    cased = is_cased(c);
    break;
  }
  if (!cased) return false;
  for (std::string_view rest = text.substr(at + 2); !rest.empty();) {
    const auto [c, size] = first_character(rest);
    if (!is_case_ignorable(c)) return !is_cased(c);
    rest.remove_prefix(size);
  }
  return true;
}

void append_lower(std::string& out, std::string_view text, size_t at, size_t size) {
  constexpr std::string_view kSigma = "\u03a3", kFinalSigma = "\u03c2";
  if (text.substr(at, size) == kSigma && is_final_sigma(text, at))
    out += kFinalSigma;
  else
    append_in_case(out, text.substr(at, size), Case::lower);
}

std::string in_case(std::string_view text, Case to) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t size = first_character(text.substr(at)).second;
    if (to == Case::lower)
      append_lower(out, text, at, size);
    else
      append_in_case(out, text.substr(at, size), to);
    at += size;
  }
  return out;
}

// Splits at runs of white space.
std::vector<std::string_view> split_words(std::string_view text, int64_t most) {
  std::vector<std::string_view> parts;
  for (text = strip(text, Ends::left); !text.empty(); text = strip(text, Ends::left)) {
    if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
      parts.push_back(text);
      return parts;
    }
    size_t at = 0;
    while (at < text.size()) {
      const auto [character, size] = first_character(text.substr(at));
      if (is_white(character)) break;
      at += size;
    }
    parts.push_back(text.substr(0, at));
    text.remove_prefix(at);
  }
  return parts;
}

}  // namespace

std::string_view strip(std::string_view text, Ends ends, std::optional<std::string_view> among) {
  const auto goes = [&](std::string_view character) {
    return among ? among->find(character) != among->npos : is_white(first_character(character).first);
  };
  while (ends != Ends::right && !text.empty()) {
    const size_t size = first_character(text).second;
    if (!goes(text.substr(0, size))) break;
    text.remove_prefix(size);
  }
  while (ends != Ends::left && !text.empty()) {
    const size_t at = last_character(text);
    if (!goes(text.substr(at))) break;
    text.remove_suffix(text.size() - at);
  }
  return text;
}

std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator, int64_t most,
                                    bool from_right) {
  if (!separator) return split_words(text, most);
  std::vector<std::string_view> parts;
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t at = from_right ? text.rfind(*separator) : text.find(*separator);
    if (at == text.npos) break;
    const size_t after = at + separator->size();
    parts.push_back(from_right ? text.substr(after) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(after);
  }
  parts.push_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const auto [character, size] = first_character(text.substr(at));
    if (ends_line(character)) {
      lines.push_back(text.substr(begin, at - begin));
      if (character == '\r' && text.substr(at + 1).starts_with('\n')) ++at;
      begin = at + size;
    }
    at += size;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

MarkedText replace_all(const MarkedText& text, std::string_view old, const MarkedText& with, int64_t most) {
  MarkedText out{{}, {}, text.markup};
  const std::string_view bytes = text.bytes;
  size_t at = 0;
  for (int64_t done = 0; most < 0 || done < most; ++done) {
    const size_t found = bytes.find(old, at);
    if (found == bytes.npos) break;
    out.append(text, at, found - at);
    out.append(with);
    at = found + old.size();
    if (!old.empty()) continue;
    if (at == bytes.size()) return out;
    const size_t size = first_character(bytes.substr(at)).second;  // an empty text matches between all characters
    out.append(text, at, size);
    at += size;
  }
  out.append(text, at, bytes.size() - at);
  return out;
}

int64_t count_of(std::string_view text, std::string_view part) {
  if (part.empty()) return characters(text) + 1;
  int64_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++count;
  return count;
}

std::string upper(std::string_view text) {
  return in_case(text, Case::upper);
}

std::string lower(std::string_view text) {
  return in_case(text, Case::lower);
}

std::string capitalize(std::string_view text) {
  std::string out;
  const size_t first = text.empty() ? 0 : first_character(text).second;
  append_in_case(out, text.substr(0, first), Case::title);
  for (size_t at = first, size = 0; at < text.size(); at += size) {
    size = first_character(text.substr(at)).second;
    append_lower(out, text, at, size);
  }
  return text.empty() ? std::string() : out;
}

std::string title(std::string_view text) {
  std::string out;
  bool within = false;  // after a cased character, within a word
  for (size_t at = 0, size = 0; at < text.size(); at += size) {
    const auto [character, bytes] = first_character(text.substr(at));
    size = bytes;
    if (within)
      append_lower(out, text, at, size);
    else
      append_in_case(out, text.substr(at, size), Case::title);
    within = is_cased(character);
  }
  return out;
}

std::string filter_title(std::string_view text) {
  std::string out;
  size_t begin = 0;  // of the word
  const auto add = [&](size_t end) {
    if (end == begin) return;
    const std::string_view word = text.substr(begin, end - begin);
    const size_t first = first_character(word).second;
    append_in_case(out, word.substr(0, first), Case::upper);
    out += lower(word.substr(first));
  };
  for (size_t at = 0, size = 0; at < text.size(); at += size) {
    const auto [character, bytes] = first_character(text.substr(at));
    size = bytes;
    constexpr std::string_view kParts = "-({[<";
    const bool parts = is_white(character) || (bytes == 1 && kParts.find(text[at]) != kParts.npos);
    if (!parts) continue;
    add(at);
    out += text.substr(at, size);
    begin = at + size;
  }
  add(text.size());
  return out;
}

std::string swap_case(std::string_view text) {
  std::string out;
  for (size_t at = 0, size = 0; at < text.size(); at += size) {
    const auto [character, bytes] = first_character(text.substr(at));
    size = bytes;
    if (utf8proc_isupper(character))
      append_lower(out, text, at, size);
    else if (utf8proc_islower(character))
      append_in_case(out, text.substr(at, size), Case::upper);
    else
      out += text.substr(at, size);
  }
  return out;
}

std::string repr_escape(std::string_view one, char quote) {
  const int32_t c = first_character(one).first;
  if (c == '\\' || c == quote) return std::string{'\\', static_cast<char>(c)};
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  if (c < 0 || is_printable(c)) return {};
  return c < 0x100     ? fmt::format("\\x{:02x}", c)
         : c < 0x10000 ? fmt::format("\\u{:04x}", c)
                       : fmt::format("\\U{:08x}", c);
}

}  // namespace witan::jinja
