// GPT-2's byte alphabet: each byte has one printable character, so that byte-level vocabularies can be written as text.
// The 188 printable Latin-1 bytes stand for themselves; the other 68 take U+0100 onwards (a space is "Ġ", U+0120).
// Source: bytes_to_unicode() of https://github.com/openai/gpt-2/blob/master/src/encoder.py
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace witan {

// The bytes in the order of their characters: GPT-2's ids 0 … 255.
const std::array<uint8_t, 256>& byte_alphabet_order();

// Convert bytes to UTF-8 text of the alphabet, and back; nullopt for text with a character outside the alphabet.
std::string to_byte_alphabet(std::string_view bytes);
std::optional<std::string> from_byte_alphabet(std::string_view text);

}  // namespace witan
