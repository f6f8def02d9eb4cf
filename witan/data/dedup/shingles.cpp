#include "witan/data/dedup/shingles.h"

#include <xxhash.h>

#include <algorithm>
#include <string>

#include "witan/data/dedup/words.h"
#include "witan/tokenizer/text/characters.h"

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

// What shingles are runs of: a number for each word or character.
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

}  // namespace witan
