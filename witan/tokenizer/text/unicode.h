// The Unicode data of Hugging Face tokenizers in our own tables (make_unicode_tables.py), so that the ids of a text do
// not depend on the system's libraries: properties of Unicode 16.0 for patterns, and the characters of Unicode 9.0, by
// which the reference normalises. Also the characters of UTF-8 text, for character-level vocabularies.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
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

// Length in bytes of the first character of `text`; 1 if it is not valid UTF-8, 0 for an empty text.
size_t character_length(std::string_view text);

// The code point of the first character; `text` must start with a valid one.
int32_t first_character(std::string_view text);

// The byte that a token such as <0x0A> stands for (two upper-case hexadecimal digits); nullopt for any other text.
std::optional<uint8_t> byte_of_token(std::string_view text);
std::string byte_token_text(uint8_t byte);

// Appends the character in UTF-8.
void append_character(std::string& out, int32_t character);

// `text` with every `from` replaced. `from` must not be empty.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

// Unicode's White_Space, and \w of Rust's regular expressions, which Hugging Face's added tokens use.
bool is_white_space(int32_t character);
bool is_word_character(int32_t character);

}  // namespace witan
