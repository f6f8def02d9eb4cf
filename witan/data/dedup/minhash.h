// MinHash signatures (Broder, 1997) and locality-sensitive hashing by bands (Indyk and Motwani, 1998; Leskovec,
// Rajaraman and Ullman, Mining of Massive Datasets, chapter 3): documents that agree in all rows of a band are
// candidates. The defaults are those of FineWeb (arXiv:2406.17557): 14 bands of 8 rows, shingles of 5 words.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "witan/data/dedup/key_sorter.h"

namespace witan {

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
