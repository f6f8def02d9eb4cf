// Characters of UTF-8 text, as vocabularies of characters see them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace witan {

// Bytes of the character that `text` begins with; 1 where they are not valid UTF-8, 0 for an empty text.
size_t character_length(std::string_view text);

// The character itself, of a text that begins with a valid one.
int32_t first_character(std::string_view text);

// The byte of a token written <0x0A>, of two capital hexadecimal digits; nullopt for every other text.
std::optional<uint8_t> byte_of_token(std::string_view text);
std::string byte_token_text(uint8_t byte);

// Appends the character in UTF-8.
void append_character(std::string& out, int32_t character);

// `text` with every `from` replaced. `from` must not be empty.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

// Unicode's White_Space, and what Rust's regular expressions call \w: as added tokens of Hugging Face use them.
bool is_white_space(int32_t character);
bool is_word_character(int32_t character);

}  // namespace witan
