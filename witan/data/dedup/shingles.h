// What of a text counts when documents are compared: its normalised form, and its shingles (Broder, "On the resemblance
// and containment of documents", 1997): all runs of n successive words or characters.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "witan/data/dedup/key_sorter.h"

namespace witan {

// none: every byte counts. space: runs of white space are one blank, and none at the ends. words: only words count
// (words.h), in lower case.
enum class Normalization : uint8_t { none, space, words };
enum class ShingleUnit : uint8_t { words, characters };

struct ShingleOptions {
  ShingleUnit unit = ShingleUnit::words;
  int64_t length = 5;
  bool operator==(const ShingleOptions&) const = default;
};

// XXH3-128 of the normalised text: equal texts have equal keys, others practically never. `text` must be
// valid UTF-8.
DocumentKey text_key(std::string_view text, Normalization normalization);

// Appends a 64-bit hash of each shingle of a text, in order, with repetitions. Characters are those of the words,
// joined by blanks. A text that is shorter than a shingle is one shingle; a text without words has none.
void shingle_hashes(std::string_view text, const ShingleOptions& options, std::vector<uint64_t>& out);

// |A ∩ B| / |A ∪ B| of two sets, each ascending and without repetitions; 1 for two empty ones.
double jaccard(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b);

}  // namespace witan
