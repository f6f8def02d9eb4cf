// The parts of BERT's tokenizers: what its normalizer does to a text, and the pre-tokenizers that split at classes of
// characters. The reference knows punctuation, marks and controls as Unicode 8.0 has them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace witan {

// Without control characters, and with a plain space for each white-space character.
std::string without_controls(std::string_view text);
// With a space before and after each Chinese character.
std::string with_chinese_apart(std::string_view text);
// Without nonspacing marks (BertNormalizer), or without all marks (StripAccents).
std::string without_nonspacing_marks(std::string_view text);
std::string without_marks(std::string_view text);

// Splits: each punctuation character, or white-space character, matches by itself.
using MatchSink = std::function<void(std::string_view piece, bool matches)>;
void match_punctuation(std::string_view text, const MatchSink& sink);
void match_white_space(std::string_view text, const MatchSink& sink);
// Runs of letters, digits and the like match, and runs of others that are not white space.
void match_words(std::string_view text, const MatchSink& sink);

}  // namespace witan
