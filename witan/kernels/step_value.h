// What changes from step to step, where kernels read it: a float64 tensor [kStepValues] on the device, so that a
// captured step can be replayed. Arguments of kernels are configuration alone.
#pragma once

#include <cstdint>

namespace witan::kernels {

namespace step_value {
inline constexpr int64_t learning_rate = 0;
inline constexpr int64_t gradient_scale = 1;  // multiplies every gradient: clipping
inline constexpr int64_t update = 2;          // updates made, this one included: 1, 2, …; skipped ones do not count
inline constexpr int64_t skip = 3;            // not 0: updates leave everything as it is
inline constexpr int64_t iteration = 4;       // steps made, this one included and skipped ones too: dropout draws by it
}  // namespace step_value
inline constexpr int64_t kStepValues = 5;

}  // namespace witan::kernels
