#include "witan/data/dedup/minhash.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "witan/base/error.h"
#include "witan/base/numbers/rng.h"
#include "witan/data/dedup/words.h"
#include "witan/tokenizer/text/unicode.h"

namespace witan {
namespace {

DocumentKey hash_key(const void* data, size_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return {hash.high64, hash.low64};
}

std::string one_blank_for_space(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool space = false;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const int32_t character = next_character(text, at);
    if (is_white_space(character)) {
      space = true;
      continue;
    }
    if (space && !out.empty()) out += ' ';
    space = false;
    out.append(text.substr(begin, at - begin));
  }
  return out;
}

// The words' characters, joined by blanks.
std::u32string joined_words(std::string_view text) {
  std::u32string out;
  for_words(text, [&](std::u32string_view word) {
    if (!out.empty()) out += U' ';
    out += word;
  });
  return out;
}

// The units that shingles are runs of, a number for each word or character.
std::vector<uint64_t> units_of(std::string_view text, ShingleUnit unit) {
  std::vector<uint64_t> units;
  if (unit == ShingleUnit::words) {
    for_words(text, [&](std::u32string_view word) { units.push_back(XXH3_64bits(word.data(), 4 * word.size())); });
  } else {
    const std::u32string characters = joined_words(text);
    units.assign(characters.begin(), characters.end());
  }
  return units;
}

}  // namespace

DocumentKey text_key(std::string_view text, Normalization normalization) {
  if (normalization == Normalization::space) {
    const std::string normalized = one_blank_for_space(text);
    return hash_key(normalized.data(), normalized.size());
  }
  if (normalization == Normalization::words) {
    const std::u32string words = joined_words(text);
    return hash_key(words.data(), 4 * words.size());
  }
  return hash_key(text.data(), text.size());
}

void shingle_hashes(std::string_view text, const ShingleOptions& options, std::vector<uint64_t>& out) {
  const std::vector<uint64_t> units = units_of(text, options.unit);
  if (units.empty()) return;
  const size_t length = std::min(static_cast<size_t>(options.length), units.size());
  for (size_t i = 0; i + length <= units.size(); ++i)
    out.push_back(XXH3_64bits(units.data() + i, length * sizeof(uint64_t)));
}

double jaccard(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  size_t common = 0;
  for (auto x = a.begin(), y = b.begin(); x != a.end() && y != b.end();) {
    common += *x == *y ? 1 : 0;
    const bool left = *x <= *y, right = *y <= *x;
    x += left ? 1 : 0;
    y += right ? 1 : 0;
  }
  const size_t all = a.size() + b.size() - common;
  return all == 0 ? 1 : static_cast<double>(common) / static_cast<double>(all);
}

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
