#include "witan/data/dedup/words.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "witan/tokenizer/text/unicode.h"

namespace witan {
namespace {

std::vector<CharacterRole> role_table() {
  static constexpr const char* kWithoutBlanks[] = {"Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar"};
  std::vector<CharacterRole> roles(kCodePoints, CharacterRole::separator);
  const auto change = [&](const char* property, CharacterRole from, CharacterRole to) {
    const auto ranges = characters_with(property);
    for (const auto& [first, last] : *ranges) std::replace(roles.begin() + first, roles.begin() + last + 1, from, to);
  };
  change("Word", CharacterRole::separator, CharacterRole::joins);
  for (const char* script : kWithoutBlanks) change(script, CharacterRole::joins, CharacterRole::alone);
  return roles;
}

}  // namespace

const std::vector<CharacterRole>& character_roles() {
  static const std::vector<CharacterRole> table = role_table();
  return table;
}

int32_t lower_case(int32_t character) {
  if (character < 0x80) return character >= 'A' && character <= 'Z' ? character + ('a' - 'A') : character;
  return utf8proc_tolower(character);
}

}  // namespace witan
