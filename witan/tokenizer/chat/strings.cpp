#include "witan/tokenizer/chat/strings.h"

#include <utf8proc.h>

#include <algorithm>

#include "witan/tokenizer/chat/value.h"

namespace witan::jinja {
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

// str.isspace() of one character.
bool is_white(int32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool ends_line(int32_t c) {
  return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

template <class Change>
std::string changed(std::string_view text, const Change& change) {
  std::string out;
  while (!text.empty()) {
    const auto [character, size] = first_character(text);
    utf8proc_uint8_t bytes[4];
    if (character < 0)
      out += text.substr(0, size);
    else
      out.append(reinterpret_cast<const char*>(bytes),
                 static_cast<size_t>(utf8proc_encode_char(change(character), bytes)));
    text.remove_prefix(size);
  }
  return out;
}

// Cuts at runs of white space.
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
    const size_t behind = at + separator->size();
    parts.push_back(from_right ? text.substr(behind) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(behind);
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

std::string replace_all(std::string_view text, std::string_view old, std::string_view with, int64_t most) {
  std::string out;
  size_t at = 0;
  for (int64_t done = 0; most < 0 || done < most; ++done) {
    const size_t found = text.find(old, at);
    if (found == text.npos) break;
    out += text.substr(at, found - at);
    out += with;
    at = found + old.size();
    if (!old.empty()) continue;
    if (at == text.size()) return out;
    const size_t size = first_character(text.substr(at)).second;  // an empty one stands between all characters
    out += text.substr(at, size);
    at += size;
  }
  out += text.substr(at);
  return out;
}

int64_t count_of(std::string_view text, std::string_view part) {
  if (part.empty()) return characters(text) + 1;
  int64_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++count;
  return count;
}

std::string upper(std::string_view text) {
  return changed(text, utf8proc_toupper);
}

std::string lower(std::string_view text) {
  return changed(text, utf8proc_tolower);
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  const size_t size = first_character(text).second;
  return changed(text.substr(0, size), utf8proc_totitle) + lower(text.substr(size));
}

std::string title(std::string_view text) {
  std::string out;
  bool begins = true;
  while (!text.empty()) {
    const auto [character, size] = first_character(text);
    const std::string_view one = text.substr(0, size);
    out += begins ? changed(one, utf8proc_toupper) : lower(one);
    begins = is_white(character) || character == '-' || character == '(' || character == '{' || character == '[' ||
             character == '<';
    text.remove_prefix(size);
  }
  return out;
}

}  // namespace witan::jinja
