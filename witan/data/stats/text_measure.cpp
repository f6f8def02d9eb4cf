#include "witan/data/stats/text_measure.h"

#include <algorithm>
#include <string>
#include <vector>

#include "witan/data/dedup/words.h"
#include "witan/tokenizer/unicode.h"

namespace witan {
namespace {

constexpr uint8_t kNoLetter = 255;

// The script of each letter, as an index into kScripts.
std::vector<uint8_t> script_table() {
  std::vector<uint8_t> table(kCodePoints, kNoLetter);
  const auto other = static_cast<uint8_t>(kScripts.size() - 1);
  const auto letters = characters_with("L");
  for (const auto& [first, last] : *letters) std::fill(table.begin() + first, table.begin() + last + 1, other);
  for (uint8_t script = 0; script < other; ++script) {
    const auto ranges = characters_with(kScripts[script]);
    for (const auto& [first, last] : *ranges)
      std::replace(table.begin() + first, table.begin() + last + 1, other, script);
  }
  return table;
}

}  // namespace

size_t TextMeasure::main_script() const {
  const auto most = std::max_element(letters.begin(), letters.end());
  return *most == 0 ? kScripts.size() : static_cast<size_t>(most - letters.begin());
}

TextMeasure measure_text(std::string_view text) {
  static const std::vector<uint8_t> scripts = script_table();
  const CharacterRole* roles = character_roles().data();
  TextMeasure measure;
  measure.bytes = static_cast<int64_t>(text.size());
  bool inside = false;  // of a word that goes on
  for (size_t at = 0; at < text.size();) {
    const auto character = static_cast<size_t>(next_character(text, at));
    ++measure.characters;
    if (scripts[character] != kNoLetter) ++measure.letters[scripts[character]];
    const CharacterRole role = roles[character];
    if (role == CharacterRole::alone || (role == CharacterRole::joins && !inside)) ++measure.words;
    inside = role == CharacterRole::joins;
  }
  return measure;
}

}  // namespace witan
