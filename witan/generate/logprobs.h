// Probabilities of tokens, from logits: the numbers that training computes.
#pragma once

#include <span>
#include <vector>

#include "witan/generate/request.h"
#include "witan/tensor/tensor.h"

namespace witan {

struct RowScores {
  std::vector<float> logprobs, lse;  // of each row: its target's, and log sum exp of its logits
};

// logits [n, V], of which the first `words` columns count -> of n targets below `words`. `as_training`: by the very
// kernel of the training step, whose bits differ on a GPU; it takes memory for a gradient. Throws ShapeError.
RowScores score_rows(Stream& stream, const Tensor& logits, std::span<const int32_t> targets, int64_t words,
                     bool as_training = false);

// The `count` likeliest tokens of a row, equal ones by id, the lower first.
std::vector<TokenLogprob> likeliest(std::span<const float> logits, float lse, int64_t count);

}  // namespace witan
