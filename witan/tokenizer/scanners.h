// Linear-time scanners for the split patterns that published tokenizers use. A scanner cuts a text exactly where the
// regular expression would (Unicode categories by utf8proc), but never backtracks: a megabyte of spaces costs a
// megabyte.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

namespace witan {

// Receives the pieces of a text, in order. Every byte of the text is in exactly one piece.
using PieceSink = std::function<void(std::string_view piece)>;

// Patterns as they stand in tokenizer.json.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =  // also GPT-4's (cl100k)
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kDigitPattern = R"(\p{N})";  // Hugging Face's Digits(individual_digits)
inline constexpr std::string_view kDigitRunPattern = R"(\p{N}+)";
inline constexpr std::string_view kDigitTripletPattern = R"(\p{N}{1,3})";

// Cuts `text` and hands the pieces to `sink`. A byte that is not part of valid UTF-8 counts as a character that is
// neither letter, number nor space.
using Scanner = void (*)(std::string_view text, const PieceSink& sink);

// The scanner that is equivalent to `regex`, or nullptr when none is known.
Scanner scanner_for(std::string_view regex);

}  // namespace witan
