// GPTQ (Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2023,
// arXiv:2210.17323): a row is rounded from left to right, and the error of each element is made up for by those that
// follow, as far as inputs are correlated.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "witan/base/threads/threads.h"

namespace witan {

class ErrorFeedback {
 public:
  // `moments` [K, K]: the sum of x xᵀ over the inputs x of the matrix, not all 0. A hundredth of the mean of its
  // diagonal is added to the diagonal, so that inputs which were always 0 get no feedback.
  ErrorFeedback(std::span<const float> moments, ThreadPool& pool);

  int64_t columns() const { return columns_; }
  // Takes the error `rounded` - `row[column]` of an element off the elements that follow.
  void spread(std::span<float> row, int64_t column, float rounded) const;

 private:
  int64_t columns_;
  std::vector<float> factor_;  // [K, K]: U, upper triangular, with Uᵀ U the inverse of the moments
};

}  // namespace witan
