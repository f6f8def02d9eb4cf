// Trains byte-level BPE: starting from the 256 bytes, it repeatedly makes the most frequent pair of adjacent tokens a
// new token, until the vocabulary is full (Sennrich et al. 2016, https://arxiv.org/abs/1508.07909).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "witan/base/config/fields.h"
#include "witan/tokenizer/text/pretokenizer.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {

struct BpeTrainerConfig {
  int64_t vocab_size = 4096;       // including the 256 bytes and the special tokens
  std::string pattern = "llama3";  // how text is split into pre-tokens: llama3, gpt2 or qwen2
  int64_t min_frequency = 2;       // rarer pairs are not merged, even if the vocabulary stays smaller
  // They get the last ids, as in GPT-2 and Llama 3: a single <|endoftext|> is vocab_size - 1.
  std::vector<std::string> special_tokens = {"<|endoftext|>"};

  // Keys tokenizer_vocab_size, tokenizer_pattern, tokenizer_min_frequency.
  Fields fields();
};

// Ids are assigned to the bytes in the order of GPT-2's alphabet, then to the merges by rank, then to the special
// tokens. The result depends only on the multiset of pre-tokens, not on the order of documents: of equally frequent
// pairs, the one with the smaller left id is merged first, then the one with the smaller right id.
class BpeTrainer {
 public:
  // Called after every merge with the number of merges so far and in all; the callback decides how often to report.
  using Progress = std::function<void(int64_t done, int64_t wanted)>;

  // Throws ConfigError for a vocabulary too small or too large, an unknown pattern, or special tokens that are empty,
  // repeated or not valid UTF-8.
  explicit BpeTrainer(BpeTrainerConfig config);

  // Counts the pre-tokens of one document. Memory grows with the number of distinct pre-tokens, not with the text.
  void add(std::string_view document);
  int64_t distinct_words() const { return static_cast<int64_t>(words_.size()); }

  // Throws DataError if the distinct pre-tokens have 2 GiB or more together.
  Tokenizer train(const Progress& progress = {}) const;

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };
  BpeTrainerConfig config_;
  Pretokenizer pretokenizer_;
  std::unordered_map<std::string, int64_t, Hash, std::equal_to<>> words_;  // pre-token -> frequency
};

// Trains in one call: `next_document` yields documents until it returns nullopt.
Tokenizer train_bpe(const BpeTrainerConfig& config,
                    const std::function<std::optional<std::string_view>()>& next_document,
                    const BpeTrainer::Progress& progress = {});

}  // namespace witan
