// Log probabilities of tokens from logits, as training computes them.
#pragma once

#include <span>
#include <vector>

#include "witan/generate/request.h"
#include "witan/tensor/tensor.h"

namespace witan {

struct RowScores {
  std::vector<float> logprobs, lse;  // per row: the target's log probability, and the log-sum-exp of the logits
};

// Scores n targets below `words` with logits [n, V], of which only the first `words` columns count. The bits are those
// of every loss that training computes from these logits. Throws ShapeError.
RowScores score_rows(Stream& stream, const Tensor& logits, std::span<const int32_t> targets, int64_t words);
// The same with targets [n] int32 that are on the stream's device.
RowScores score_rows(Stream& stream, const Tensor& logits, const Tensor& targets, int64_t words);

// The `count` likeliest tokens of a row; equal ones are ordered by id.
std::vector<TokenLogprob> likeliest(std::span<const float> logits, float lse, int64_t count);

}  // namespace witan
