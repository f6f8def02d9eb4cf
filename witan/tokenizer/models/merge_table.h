// The merges of byte-pair encoding: found by their pairs, and derived for vocabularies that list none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "witan/tokenizer/models/token_map.h"
#include "witan/tokenizer/models/tokenizer_spec.h"

namespace witan {

// Maps (left, right) to (rank, result). Open addressing, at most half full.
class MergeTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Entry {
    int32_t left = -1, right = -1;
    uint32_t rank = kNone;
    int32_t result = -1;
  };

  // The last merge of a pair counts, as in Hugging Face tokenizers. `ranks` are the ranks of the merges; empty: their
  // positions.
  MergeTable(const std::vector<Merge>& merges, const std::vector<uint32_t>& ranks);
  // The pair's entry, or one with rank kNone.
  const Entry& find(int32_t left, int32_t right) const { return entries_[place(left, right, hash_of(left, right))]; }

 private:
  static uint64_t hash_of(int32_t left, int32_t right) {
    const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
    return (key * 0x9E3779B97F4A7C15u) >> 32;
  }
  size_t place(int32_t left, int32_t right, uint64_t hash) const {
    const size_t mask = entries_.size() - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
      const Entry& entry = entries_[i];
      if (entry.rank == kNone || (entry.left == left && entry.right == right)) return i;
    }
  }

  std::vector<Entry> entries_;
};

// Fills spec.merges and spec.merge_ranks for vocabularies that list no merges, SentencePiece's and tiktoken's: two
// neighbours merge whenever their joined text is a token, the token of the lowest rank first. For each token in `ids`
// this adds every pair of tokens in `known` that spells it, with rank `rank_of[id]`. Pairs are cut between bytes, or
// between characters if `characters`. Throws DataError for a token of more than 1,024 bytes.
void add_merges(TokenizerSpec& spec, const std::vector<int32_t>& ids, const TokenMap& known,
                const std::vector<uint32_t>& rank_of, bool characters);

}  // namespace witan
