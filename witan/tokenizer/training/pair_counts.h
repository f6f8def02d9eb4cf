// The data structure of BPE training: counts how often each pair of adjacent tokens occurs in the pre-tokens. A merge
// updates the counts in time proportional to the pair's occurrences, without another scan of the corpus.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <queue>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace witan {

struct Pair {
  int32_t left, right;
  auto operator<=>(const Pair&) const = default;
};

// Usage: add_word() for each distinct pre-token, start() once, then most_frequent() and merge() in turn.
class PairCounts {
 public:
  explicit PairCounts(int64_t min_count) : min_count_(min_count) {}

  // Adds a pre-token that occurs `count` times, as tokens byte_id[byte]. Throws DataError if all pre-tokens together
  // reach 2 GiB.
  void add_word(std::string_view word, const std::array<int32_t, 256>& byte_id, int64_t count);
  void start();

  // The most frequent pair (of equally frequent pairs the smallest) with at least min_count occurrences.
  std::optional<Pair> most_frequent();
  // Replaces the pair by `result` everywhere, from left to right within each pre-token.
  void merge(Pair pair, int32_t result);

 private:
  // One token of one pre-token. The tokens of a pre-token are a linked list over its bytes.
  struct Symbol {
    int32_t id;              // -1 once merged into its left neighbour
    int32_t previous, next;  // -1 at the ends of the pre-token
    uint32_t word;
  };
  struct Occurrences {
    int64_t count = 0;
    std::vector<int32_t> places;  // of left symbols; outdated ones are detected on use
  };
  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {  // the heap's top is the largest
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };
  struct PairHash {
    size_t operator()(Pair pair) const {
      const uint64_t key =
          static_cast<uint64_t>(static_cast<uint32_t>(pair.left)) << 32 | static_cast<uint32_t>(pair.right);
      const uint64_t product = key * 0x9E3779B97F4A7C15u;
      return product ^ product >> 32;
    }
  };

  void remove(Pair pair, uint32_t word);
  void insert(Pair pair, int32_t place);
  void push(Pair pair, int64_t count);

  int64_t min_count_;
  std::vector<Symbol> symbols_;
  std::vector<int64_t> word_count_;
  std::unordered_map<Pair, Occurrences, PairHash> pairs_;
  std::priority_queue<Candidate> candidates_;  // counts may have decreased since, which is checked at the top
  std::vector<Pair> grown_;                    // pairs that the current merge created
};

}  // namespace witan
