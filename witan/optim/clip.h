// The local half of gradient clipping: sums of squares of each parameter, which parallel/global_norm sums over ranks.
#pragma once

#include <functional>
#include <vector>

#include "witan/nn/parameter.h"
#include "witan/optim/step_state.h"

namespace witan {

// The norm of many tensors, and how many of their elements are exactly 0, as Megatron-LM logs them.
struct Norm2 {
  double norm = 0;
  double zeros = 0;
};

// The number of rows of sums, one for each chunk, of the elements before `element` in a parameter's flat local part.
// `element` is a boundary between chunks. Ranks have as many rows as the rank with the largest part; their last rows
// may be empty. Each expert is cut into chunks by itself, so that its sums do not depend on the rank's other experts.
int64_t chunks_before(const Parameter& parameter, int64_t element);

// Adds items that sum the flat `tensor`, elements [first, first + n) of the parameter's value or gradient, into rows
// from first_row on. Both ends are boundaries between chunks. Adds at most three items.
void add_square_sums(std::vector<kernels::SquareSumsItem>& items, const Parameter& parameter, const Tensor& tensor,
                     int64_t first, int64_t first_row);

// Scales this step's gradients down to max_norm (0: never), or skips the step if their norm is not finite. total [2]
// float64, the same on every rank.
void clip(Stream& stream, const StepState& step, const Tensor& total, double max_norm);

// Waits for the stream. Zeros on the meta device.
Norm2 read_norm(Stream& stream, const Tensor& total);

}  // namespace witan
