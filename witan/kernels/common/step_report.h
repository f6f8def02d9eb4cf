// The inputs and the report of a step, on the device, without the host in between.
#pragma once

#include <cstdint>
#include <vector>

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// Values that change from step to step. Kernels read them from a float64 tensor on the device, so that a captured step
// can be replayed; kernels' arguments are configuration only. The learning rates of further parameter groups follow the
// kStepValues.
namespace step_value {
inline constexpr int64_t learning_rate = 0;
inline constexpr int64_t gradient_scale = 1;  // multiplies every gradient: clipping
inline constexpr int64_t update = 2;          // updates made, this one included: 1, 2, …; skipped ones do not count
// Not 0: updates leave everything as it is. Above 1: receive_buffer.h; below 0: the step has nothing to learn from, as
// was known before it.
inline constexpr int64_t skip = 3;
inline constexpr int64_t iteration = 4;     // steps made, this one included and skipped ones too: dropout draws by it
inline constexpr int64_t weight_decay = 5;  // multiplies every weight decay: the schedule of it
}  // namespace step_value
inline constexpr int64_t kStepValues = 6;

namespace step_value {
// The index of the learning rate of parameter group `group`.
constexpr int64_t learning_rate_of(int64_t group) {
  return group == 0 ? learning_rate : kStepValues + group - 1;
}
}  // namespace step_value

// weights[t] = mask[t] / max(targets[0], 1), formed in float64;  mask [T] float32   targets [1] float64: how many
// targets the global batch has   weights [T] float32 or float64
void loss_weights(Stream& stream, const Tensor& weights, const Tensor& mask, const Tensor& targets);
WITAN_KERNEL_TWINS(loss_weights)

// out = the elements of all sources, one after the other, as float64;  out [sum of elements] float64, sources of any
// dtype, contiguous.
void collect(Stream& stream, const Tensor& out, const std::vector<Tensor>& sources);
WITAN_KERNEL_TWINS(collect)

}  // namespace witan::kernels
