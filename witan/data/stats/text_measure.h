// Sizes of a text, and the scripts it is written in: cheap to count, and a hint at its languages.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace witan {

// Unicode's names of the scripts that are told apart; the last one stands for all others.
inline constexpr std::array<std::string_view, 27> kScripts = {
    "Latin",    "Han",      "Cyrillic", "Arabic", "Hangul", "Hiragana", "Katakana",  "Devanagari", "Bengali",
    "Greek",    "Hebrew",   "Thai",     "Tamil",  "Telugu", "Kannada",  "Malayalam", "Gujarati",   "Gurmukhi",
    "Georgian", "Armenian", "Ethiopic", "Khmer",  "Lao",    "Myanmar",  "Sinhala",   "Tibetan",    "other"};

// What a text consists of.
struct TextMeasure {
  int64_t bytes = 0, characters = 0;
  int64_t words = 0;                               // as of data/dedup/words.h
  std::array<int64_t, kScripts.size()> letters{};  // by script
  bool operator==(const TextMeasure&) const = default;

  // The script of most letters, the first of equal ones; nothing (kScripts.size()) without letters.
  size_t main_script() const;
};

// `text` must be valid UTF-8.
TextMeasure measure_text(std::string_view text);

}  // namespace witan
