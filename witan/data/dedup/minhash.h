// Shingles, MinHash signatures (Broder, 1997) and locality-sensitive hashing by bands (Indyk and Motwani, 1998;
// Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, chapter 3): documents that agree in all rows of a band
// are candidates. The defaults are those of FineWeb (arXiv:2406.17557): 14 bands of 8 rows, shingles of 5 words.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "witan/data/dedup/key_sorter.h"

namespace witan {

// Documents are compared by their normalised text, or by its shingles (Broder, "On the resemblance and containment of
// documents", 1997): all runs of n successive words or characters.

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

struct BandOptions {
  int64_t bands = 14;
  int64_t rows = 8;  // of each band
  uint64_t seed = 1;
  bool operator==(const BandOptions&) const = default;
};

// The probability that two documents of this Jaccard similarity are candidates: 1 - (1 - s^rows)^bands.
double candidate_probability(double similarity, const BandOptions& options);
// The similarity at which it is one half.
double similarity_of_even_chance(const BandOptions& options);

// Immutable, so safe to share between threads.
class MinHash {
 public:
  explicit MinHash(const BandOptions& options);

  // The least hash of any shingle under each of bands * rows hash functions: h(x) = (a x + b) / 2^32 mod 2^32 of the
  // low 32 bits x of a shingle (Dietzfelbinger, 1996: two values collide with probability 2^-32). a and b are drawn
  // from the seed. `shingles` must not be empty.
  std::vector<uint32_t> signature(std::span<const uint64_t> shingles) const;
  // A hash of each band of a signature, and of the band's number.
  std::vector<DocumentKey> band_keys(std::span<const uint32_t> signature) const;

 private:
  BandOptions options_;
  std::vector<uint64_t> factors_, addends_;  // [bands * rows]
};

}  // namespace witan
