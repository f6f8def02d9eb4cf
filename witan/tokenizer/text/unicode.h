// The Unicode data of Hugging Face tokenizers in our own tables (make_unicode_tables.py), so that the ids of a text do
// not depend on the system's libraries: properties of Unicode 16.0 for patterns, and the characters of Unicode 9.0, by
// which the reference normalises.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace witan {

inline constexpr int32_t kCodePoints = 0x110000;

using CharacterRanges = std::vector<std::pair<int32_t, int32_t>>;  // first and last, sorted and disjoint

// The characters of \p{NAME}, where NAME is a general category, a script, or a class such as Alpha, Word or Space.
// Case, spaces, hyphens and underscores in the name are ignored. nullopt for a name that is not in the tables.
std::optional<CharacterRanges> characters_with(std::string_view property);

// Whether the normalizer knows the character; it neither decomposes nor reorders others.
bool is_in_unicode_9(int32_t character);

}  // namespace witan
