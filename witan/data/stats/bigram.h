// An interpolated Kneser-Ney bigram model (Kneser and Ney, ICASSP 1995; Chen and Goodman, 1999, section 3): the
// baseline that a trained model has to beat.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "witan/data/datasets/token_dataset.h"

namespace witan {

//   p(w|v) = max(c(vw) - D, 0) / c(v.)  +  D N(v.) / c(v.) * q(w)         only q if v was never seen
//   q(w)   = max(N(.w) - D', 0) / N(..) +  D' N(. any) / N(..) * 1 / V
// c counts bigrams, N counts distinct ones (N(v.) followers of v, N(.w) predecessors of w, N(. any) tokens with a
// predecessor, N(..) all); D = n1 / (n1 + 2 n2) from bigrams seen once and twice, D' the same from N(.w).
class BigramModel {
 public:
  explicit BigramModel(int64_t vocab_size);

  // Counts the bigrams of a sequence of tokens. Throws DataError for an id outside the vocabulary.
  void count(std::span<const int32_t> tokens);
  // Ends counting; must be called before the functions below.
  void finish();

  // Probability of `token` after `previous`; without one, q(token). Sums to 1 over the vocabulary.
  double probability(std::optional<int32_t> previous, int32_t token) const;

  int64_t vocab_size() const { return vocab_size_; }
  int64_t distinct_bigrams() const { return static_cast<int64_t>(entries_.size()); }

 private:
  struct Entry {
    uint64_t bigram = 0;  // previous << 32 | token
    int64_t count = 0;    // 0: a free slot
  };
  Entry& slot_of(uint64_t bigram);
  void grow();
  void estimate_continuation();

  int64_t vocab_size_;
  std::vector<Entry> slots_;          // while counting: open addressing, at most half full
  size_t used_ = 0;                   // of slots_
  std::vector<Entry> entries_;        // then: sorted by bigram
  std::vector<int64_t> row_;          // [V + 1]: entries_ of each previous token
  std::vector<int64_t> total_;        // [V]: c(v.)
  std::vector<double> continuation_;  // [V]: q
  double discount_ = 0;
};

// Counts every document; the first token of each follows `end_of_text`, if there is one. Where there are more than
// `most_tokens`, counts so many of them, of documents all over the dataset, of which long ones are cut.
BigramModel count_bigrams(const TokenDataset& train, int64_t vocab_size, std::optional<int32_t> end_of_text,
                          int64_t most_tokens = INT64_MAX);

struct BigramScore {
  int64_t tokens = 0, bytes = 0;
  double bits = 0;

  double bits_per_byte() const { return bytes > 0 ? bits / static_cast<double>(bytes) : 0; }
  double bits_per_token() const { return tokens > 0 ? bits / static_cast<double>(tokens) : 0; }
};

// Bits that the model needs for every token of `held_out`. token_bytes(id): bytes of text of a token (0 for the end of
// text).
BigramScore score_bigrams(const BigramModel& model, const TokenDataset& held_out, std::optional<int32_t> end_of_text,
                          const std::function<int64_t(int32_t)>& token_bytes);

}  // namespace witan
