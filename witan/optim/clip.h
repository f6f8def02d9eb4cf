// The local half of gradient clipping: sums of squares per parameter. parallel/global_norm sums them across ranks.
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

// How many rows of sums the elements of a parameter's flat local part before `element` yield, a chunk each; `element`
// is a boundary between chunks, of the largest part that a rank holds: they have the same rows, of which the last may
// be of nothing. An expert is a piece of its own, so that its sums do not depend on which other experts are on its
// rank.
int64_t chunks_before(const Parameter& parameter, int64_t element);

// Adds the sums of `tensor`, flat: elements [first, first + n) of the parameter's value or gradient, into rows from
// first_row. Both ends are boundaries between chunks. At most three items.
void add_square_sums(std::vector<kernels::SquareSumsItem>& items, const Parameter& parameter, const Tensor& tensor,
                     int64_t first, int64_t first_row);

// Scales this step's gradients down to max_norm (0: never), or skips the step when their norm is not finite.
// total [2] float64, the same on every rank.
void clip(Stream& stream, const StepState& step, const Tensor& total, double max_norm);

// Waits for the stream. Zeros on the meta device.
Norm2 read_norm(Stream& stream, const Tensor& total);

}  // namespace witan
