// What changes from step to step, where kernels read it: a float64 tensor on the device, so that a captured step can be
// replayed. Its first kStepValues are these; behind them are the learning rates of further parameter groups. Arguments
// of kernels are configuration alone.
#pragma once

#include <cstdint>

namespace witan::kernels {

namespace step_value {
inline constexpr int64_t learning_rate = 0;
inline constexpr int64_t gradient_scale = 1;  // multiplies every gradient: clipping
inline constexpr int64_t update = 2;          // updates made, this one included: 1, 2, …; skipped ones do not count
inline constexpr int64_t skip = 3;            // not 0: updates leave everything as it is (above 1: expert_pool.h)
inline constexpr int64_t iteration = 4;       // steps made, this one included and skipped ones too: dropout draws by it
inline constexpr int64_t weight_decay = 5;    // multiplies every weight decay: the schedule of it
}  // namespace step_value
inline constexpr int64_t kStepValues = 6;

namespace step_value {
// Where the learning rate of parameter group `group` stands.
constexpr int64_t learning_rate_of(int64_t group) {
  return group == 0 ? learning_rate : kStepValues + group - 1;
}
}  // namespace step_value

}  // namespace witan::kernels
