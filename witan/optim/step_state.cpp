#include "witan/optim/step_state.h"

namespace witan {

StepState::StepState(Stream& stream)
    : values_(stream.zeros({kernels::kStepValues}, DType::f64, MemoryTag::optimizer)) {}

void StepState::set(double learning_rate, int64_t iteration, int64_t update) {
  if (values_.is_meta()) return;
  double* values = values_.data<double>();
  values[kernels::step_value::learning_rate] = learning_rate;
  values[kernels::step_value::gradient_scale] = 1;
  values[kernels::step_value::update] = static_cast<double>(update);
  values[kernels::step_value::skip] = 0;
  values[kernels::step_value::iteration] = static_cast<double>(iteration);
}

}  // namespace witan
