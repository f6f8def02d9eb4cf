#include "witan/tokenizer/text/characters.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "witan/tokenizer/text/unicode.h"

namespace witan {
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
