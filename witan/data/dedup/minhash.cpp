#include "witan/data/dedup/minhash.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>

#include "witan/base/error.h"
#include "witan/base/numbers/rng.h"

namespace witan {

double candidate_probability(double similarity, const BandOptions& options) {
  return 1 - std::pow(1 - std::pow(similarity, static_cast<double>(options.rows)), static_cast<double>(options.bands));
}

double similarity_of_even_chance(const BandOptions& options) {
  return std::pow(1 - std::pow(0.5, 1 / static_cast<double>(options.bands)), 1 / static_cast<double>(options.rows));
}

MinHash::MinHash(const BandOptions& options) : options_(options) {
  require<ConfigError>(options.bands >= 1 && options.rows >= 1 && options.bands * options.rows <= 4096,
                       "MinHash needs at least one band of one row, and at most 4096 rows in all, got ", options.bands,
                       " x ", options.rows, " (--bands, --rows)");
  const Philox random(options.seed, Philox::stream_of("minhash"));
  const auto word = [&](uint64_t i) { return uint64_t{random.bits(2 * i)} << 32 | random.bits(2 * i + 1); };
  const auto count = static_cast<uint64_t>(options.bands * options.rows);
  for (uint64_t i = 0; i < count; ++i) {
    factors_.push_back(word(2 * i));
    addends_.push_back(word(2 * i + 1));
  }
}

std::vector<uint32_t> MinHash::signature(std::span<const uint64_t> shingles) const {
  const size_t count = factors_.size();
  const uint64_t *a = factors_.data(), *b = addends_.data();
  std::vector<uint32_t> least(count, UINT32_MAX);
  uint32_t* out = least.data();
  for (const uint64_t shingle : shingles) {
    const uint64_t x = static_cast<uint32_t>(shingle);
#pragma omp simd
    for (size_t i = 0; i < count; ++i) {
      const auto hash = static_cast<uint32_t>((a[i] * x + b[i]) >> 32);
      out[i] = hash < out[i] ? hash : out[i];
    }
  }
  return least;
}

std::vector<DocumentKey> MinHash::band_keys(std::span<const uint32_t> signature) const {
  std::vector<DocumentKey> keys;
  const auto rows = static_cast<size_t>(options_.rows);
  for (size_t band = 0; band < static_cast<size_t>(options_.bands); ++band) {
    const XXH128_hash_t hash = XXH3_128bits_withSeed(signature.data() + band * rows, rows * sizeof(uint32_t), band + 1);
    keys.push_back({hash.high64, hash.low64});
  }
  return keys;
}

}  // namespace witan
