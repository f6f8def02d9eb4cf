// Characters of UTF-8 text, for character-level vocabularies.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace witan {

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
