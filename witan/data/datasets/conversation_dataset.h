// Datasets of conversations: documents that are packed whole, with the tokens that are learnt from.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "witan/data/datasets/token_dataset.h"

namespace witan {

// Two indexed datasets of equally long documents: PREFIX with the tokens, PREFIX.loss with a mark for each, that says
// its weight in the loss.
inline constexpr const char* kLossSuffix = ".loss";

// The mark of a weight, and back: 0, 1, or the bits of a float16. Those of subnormal ones are no marks, so that a 1 is
// always a weight of 1, as in shards that know no other weights.
inline constexpr int64_t kLossMarks = 0x7C00;  // marks are below: those of finite float16
int32_t mark_of_weight(float weight);
float weight_of_mark(int32_t mark);

// Pairs of answers to one prompt are adjacent conversations, the chosen one first. The first token of a conversation is
// no target, so that its mark says what place the conversation has in a pair.
inline constexpr float kChosenMark = 2, kRejectedMark = 3;
// Whether the documents are such pairs.
bool holds_pairs(const TokenDataset& dataset);

// Throws IoError; CorruptionError when the two do not fit.
std::shared_ptr<const TokenDataset> open_conversation_shards(const fs::path& prefix);

// Documents in memory.
class TokensInMemory final : public TokenDataset {
 public:
  explicit TokensInMemory(std::string name) : name_(std::move(name)) {}

  void add(std::vector<int32_t> tokens);
  // Adds a document with the weights of its tokens in the loss, as a conversation has them: all documents, or none.
  void add(std::vector<int32_t> tokens, std::vector<float> loss);

  int64_t documents() const override { return static_cast<int64_t>(tokens_.size()); }
  int64_t tokens() const override { return total_; }
  int64_t length(int64_t document) const override {
    return static_cast<int64_t>(tokens_[static_cast<size_t>(document)].size());
  }
  void read(int64_t document, int64_t begin, std::span<int32_t> out) const override;
  std::string name() const override { return name_; }
  bool conversations() const override { return !loss_.empty(); }
  void read_loss(int64_t document, int64_t begin, std::span<float> out) const override;

 private:
  std::string name_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<std::vector<float>> loss_;
  int64_t total_ = 0;
};

}  // namespace witan
