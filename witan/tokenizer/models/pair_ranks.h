// The ranks of merges by their pairs, packed to touch as few cache lines as possible.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

namespace witan {

// A pair and its rank share one 64-bit number: a cache line holds eight, and most pairs are in their home line.
class PairRanks {
 public:
  static constexpr uint64_t kNone = UINT64_MAX;

  // Has room for `pairs` pairs of token ids below `tokens`.
  PairRanks(size_t pairs, size_t tokens)
      : token_bits_(std::bit_width(tokens)),
        rank_bits_(64 - 2 * token_bits_),
        lines_(std::bit_ceil(pairs * 3 / 2 / kSlots + 1)),
        filter_(std::bit_ceil(pairs / 12 + 1)) {}
  PairRanks() : PairRanks(0, 1) {}

  // Whether this rank fits beside a pair.
  bool has_room_for(uint64_t rank) const { return rank_bits_ > 0 && rank < (uint64_t{1} << rank_bits_) - 1; }
  // Replaces the rank of a pair that is already there.
  void put(int32_t left, int32_t right, uint64_t rank) {
    const uint64_t at = hash(left, right);
    filter_[filter_word(at)] |= uint64_t{1} << (at & 63);
    *slot_of(left, right) = key(left, right) << rank_bits_ | rank;
  }

  // The rank of the pair, or kNone.
  uint64_t find(int32_t left, int32_t right) const {
    const uint64_t slot = *slot_of(left, right);
    return slot == kNone ? kNone : slot & ((uint64_t{1} << rank_bits_) - 1);
  }
  // The address at which find() starts, for prefetching.
  const void* place_of(int32_t left, int32_t right) const { return &lines_[hash(left, right) & (lines_.size() - 1)]; }

  // False if the pair is certainly absent. Reads one bit of a Bloom filter much smaller than the table of pairs.
  bool may_have(int32_t left, int32_t right) const {
    const uint64_t at = hash(left, right);
    return (filter_[filter_word(at)] >> (at & 63) & 1) != 0;
  }
  // The address that may_have() reads, for prefetching.
  const void* filter_of(int32_t left, int32_t right) const { return &filter_[filter_word(hash(left, right))]; }

 private:
  static constexpr size_t kSlots = 8;
  struct alignas(64) Line {
    Line() { std::fill(std::begin(slots), std::end(slots), kNone); }
    uint64_t slots[kSlots];
  };

  uint64_t key(int32_t left, int32_t right) const {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << token_bits_ | static_cast<uint32_t>(right);
  }
  uint64_t hash(int32_t left, int32_t right) const {
    const uint64_t product = key(left, right) * 0x9E3779B97F4A7C15u;
    return product ^ product >> 32;
  }
  size_t filter_word(uint64_t at) const { return at >> 6 & (filter_.size() - 1); }
  // The pair's slot, or the free one for it. Probes the slots of a line in an order that depends on the hash, then the
  // next line.
  const uint64_t* slot_of(int32_t left, int32_t right) const {
    const uint64_t at = hash(left, right), wanted = key(left, right);
    for (size_t line = at;; ++line)
      for (size_t i = 0; i < kSlots; ++i) {
        const uint64_t* const slot = &lines_[line & (lines_.size() - 1)].slots[(at >> 60 ^ i) % kSlots];
        if (*slot == kNone || *slot >> rank_bits_ == wanted) return slot;
      }
  }
  uint64_t* slot_of(int32_t left, int32_t right) {
    return const_cast<uint64_t*>(std::as_const(*this).slot_of(left, right));
  }

  int token_bits_, rank_bits_;
  std::vector<Line> lines_;       // some slots are free
  std::vector<uint64_t> filter_;  // a bit for each hash of a pair
};

}  // namespace witan
