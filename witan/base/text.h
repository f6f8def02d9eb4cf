// Small pieces of text for people: sizes, durations, suggestions; and UTF-8 checks.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace witan {

std::string format_bytes(double bytes);       // "1.50 GiB"
std::string format_count(double count);       // "12.3 M"
std::string format_duration(double seconds);  // "4.2 s", "3 min 20 s", "2 h 5 min", "3 d 4 h"

// Parses "8GB", "512MiB", "1e9", "80G" (decimal for k/M/G/T and …B, binary for …iB). Throws ConfigError.
uint64_t parse_bytes(std::string_view text);

// The candidate nearest to `word` by slips of a finger, or "" when none is near enough to be meant: one slip, or one
// for three letters.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);
// The name that other programs give to a candidate, and the candidate.
using OtherNames = std::span<const std::pair<std::string_view, std::string_view>>;
// " (did you mean X?)" or "": the candidate that other programs call so, or else the nearest one.
std::string suggestion(std::string_view word, const std::vector<std::string>& candidates, OtherNames others = {});

// `text` as a message shows it: at most `most` bytes and then "...", control characters and invalid UTF-8 as \xNN.
std::string clipped(std::string_view text, size_t most = 80);

// A message for a terminal, which obeys control characters in names of files and other input: they and invalid UTF-8 as
// \xNN. Ends of lines and tabs stay, since messages have them.
std::string printable(std::string_view message);

// `text` as a POSIX shell takes it for one word: as it is where nothing in it is special, else in single quotes.
std::string shell_word(std::string_view text);

// Byte offset of the first byte that is not valid UTF-8 (RFC 3629), or npos.
size_t find_invalid_utf8(std::string_view text);
// The text with every maximal invalid sequence replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

// "1 document", "2 documents": nouns whose plural takes an s.
inline std::string counted(int64_t count, std::string_view noun) {
  return std::to_string(count).append(" ").append(noun).append(count == 1 ? "" : "s");
}

// The value, or NaN without its sign, as Python writes every NaN.
inline double unsigned_nan(double value) {
  return std::isnan(value) ? std::abs(value) : value;
}

}  // namespace witan
