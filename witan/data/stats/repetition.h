// How much a text repeats itself, by the thirteen rules of Gopher (Rae et al., arXiv:2112.11446, table A1), which most
// open corpora are filtered by: shares of lines and paragraphs that have come before, of the characters in the most
// frequent run of 2 to 4 words, and in runs of 5 to 10 words that have come before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace witan {

// The words of a text, with hashes of any run of them. The text is valid UTF-8 below 4 GiB and must outlive this. Runs
// of the same words have the same hash, others practically never (64 bits; polynomial hashing of Karp and Rabin, 1987).
class HashedWords {
 public:
  explicit HashedWords(std::string_view text);

  size_t size() const { return begins_.size(); }
  uint64_t hash(size_t first, size_t count) const;
  // Counts the words' characters alone, without those between words.
  int64_t characters(size_t first, size_t count) const { return letters_[first + count] - letters_[first]; }
  // The text from the first word to the end of the last.
  std::string_view text(size_t first, size_t count) const {
    return text_.substr(begins_[first], ends_[first + count - 1] - begins_[first]);
  }

 private:
  std::string_view text_;
  std::vector<uint32_t> begins_, ends_;  // of each word, in bytes
  std::vector<uint64_t> prefixes_;       // hash of all words before each, and of all
  std::vector<uint32_t> letters_;        // characters of all words before each, and of all
};

struct RepetitionRule {
  std::string_view name;
  double limit;  // a text above it is not taken
};
inline constexpr std::array<RepetitionRule, 13> kRepetitionRules = {{{"duplicate lines", 0.30},
                                                                     {"duplicate paragraphs", 0.30},
                                                                     {"characters of duplicate lines", 0.20},
                                                                     {"characters of duplicate paragraphs", 0.20},
                                                                     {"most frequent 2-gram", 0.20},
                                                                     {"most frequent 3-gram", 0.18},
                                                                     {"most frequent 4-gram", 0.16},
                                                                     {"duplicate 5-grams", 0.15},
                                                                     {"duplicate 6-grams", 0.14},
                                                                     {"duplicate 7-grams", 0.13},
                                                                     {"duplicate 8-grams", 0.12},
                                                                     {"duplicate 9-grams", 0.11},
                                                                     {"duplicate 10-grams", 0.10}}};

using RepetitionShares = std::array<double, kRepetitionRules.size()>;  // by rule; above 1 where n-grams overlap

// `characters` of the text, and its words. Lines end with line ends, paragraphs with empty lines; empty ones do not
// count. As in datatrove's filter, the characters of a most frequent n-gram are those of its words and of a blank
// between them, also where it occurs only once, and those of duplicate n-grams are those of their words; duplicates are
// found from the beginning on and do not overlap.
RepetitionShares measure_repetition(std::string_view text, int64_t characters, const HashedWords& words);

}  // namespace witan
