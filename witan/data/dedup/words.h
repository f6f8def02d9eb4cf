// Words of a text in any script, without a dictionary.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace witan {

enum class CharacterRole : uint8_t {
  separator,  // ends a word
  joins,      // a letter, mark, digit or connector (Unicode's \w): words are runs of these
  alone       // of a script that puts no blanks between words (Han, kana, Thai, Lao, Khmer, Burmese): a word of its own
};
// The roles of all kCodePoints characters, computed once.
const std::vector<CharacterRole>& character_roles();
int32_t lower_case(int32_t character);  // Unicode's simple mapping

// The character at `at`, which is moved after it. The text must be valid UTF-8.
inline int32_t next_character(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<int32_t>(static_cast<unsigned char>(text[at + i])); };
  const int32_t first = byte(0);
  if (first < 0x80) return ++at, first;
  if (first < 0xE0) {
    const int32_t c = (first & 0x1F) << 6 | (byte(1) & 0x3F);
    return at += 2, c;
  }
  if (first < 0xF0) {
    const int32_t c = (first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    return at += 3, c;
  }
  const int32_t c = (first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  return at += 4, c;
}

// Calls visit(std::u32string_view) with every word in lower case, in order. The text must be valid UTF-8.
template <class Visit>
void for_words(std::string_view text, Visit visit) {
  const CharacterRole* roles = character_roles().data();
  std::u32string word;
  const auto end_word = [&] {
    if (!word.empty()) visit(std::u32string_view(word));
    word.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const int32_t character = next_character(text, at);
    const CharacterRole role = roles[character];
    if (role != CharacterRole::joins) end_word();
    if (role == CharacterRole::separator) continue;
    word += static_cast<char32_t>(lower_case(character));
    if (role == CharacterRole::alone) end_word();
  }
  end_word();
}

}  // namespace witan
