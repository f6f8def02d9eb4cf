// Byte-pair encoding of single pre-tokens, here called words (Sennrich et al. 2016, https://arxiv.org/abs/1508.07909;
// on bytes, as in GPT-2).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "witan/tokenizer/token_map.h"
#include "witan/tokenizer/tokenizer_spec.h"

namespace witan {

// Merges by rank: (left, right) -> (rank, result). Open addressing, at most half full.
class MergeTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Entry {
    int32_t left = -1, right = -1;
    uint32_t rank = kNone;
    int32_t result = -1;
  };

  // Of equal pairs the last one counts, as in Hugging Face's reader.
  explicit MergeTable(const std::vector<Merge>& merges);
  // The entry of the pair, or one with rank kNone.
  const Entry& find(int32_t left, int32_t right) const { return entries_[place(left, right)]; }

 private:
  size_t place(int32_t left, int32_t right) const;
  std::vector<Entry> entries_;
};

// Applies the merges of a tokenizer. Immutable: encode_word() may be called from several threads.
class Bpe {
 public:
  // `spec` must outlive it. Throws DataError if one of the 256 bytes has no token.
  explicit Bpe(const TokenizerSpec& spec);

  // Appends the tokens of one word: its bytes, merged by lowest rank, leftmost first, until no merge applies. Takes
  // O(n log n) for n bytes. Throws DataError for a word of 2 GiB or more.
  void encode_word(std::string_view word, std::vector<int32_t>& out) const;

 private:
  void merge_short(std::string_view word, std::vector<int32_t>& out) const;
  void merge_long(std::string_view word, std::vector<int32_t>& out) const;

  MergeTable merges_;
  int32_t byte_token_[256];
  TokenMap whole_;  // words that are a single token and need no merging
};

}  // namespace witan
