// The parts of BERT's tokenizers: the operations of BertNormalizer, and pre-tokenizers that split at classes of
// characters. Like the reference, they use Unicode 8.0's punctuation, marks and control characters.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace witan {

// Removes control characters and replaces each white-space character by a plain space.
std::string clean_text(std::string_view text);
// Puts a space before and after each Chinese character.
std::string pad_chinese_characters(std::string_view text);
// Removes nonspacing marks (BertNormalizer), or all marks (StripAccents).
std::string strip_nonspacing_marks(std::string_view text);
std::string strip_marks(std::string_view text);

// Split a text; each punctuation or white-space character is a match of its own.
using MatchSink = std::function<void(std::string_view piece, bool matches)>;
void match_punctuation(std::string_view text, const MatchSink& sink);
void match_white_space(std::string_view text, const MatchSink& sink);
// Runs of word characters match, and so do runs of other characters that are not white space.
void match_words(std::string_view text, const MatchSink& sink);

}  // namespace witan
