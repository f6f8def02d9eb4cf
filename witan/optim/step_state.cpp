#include "witan/optim/step_state.h"

#include <array>

#include "witan/tensor/host.h"

namespace witan {

StepState::StepState(Stream& stream)
    : values_(stream.zeros({kernels::kStepValues}, DType::f64, MemoryTag::optimizer)) {}

void StepState::set(double learning_rate, int64_t iteration, int64_t update) {
  std::array<double, kernels::kStepValues> values{};
  values[kernels::step_value::learning_rate] = learning_rate;
  values[kernels::step_value::gradient_scale] = 1;
  values[kernels::step_value::update] = static_cast<double>(update);
  values[kernels::step_value::skip] = 0;
  values[kernels::step_value::iteration] = static_cast<double>(iteration);
  copy_from_host(values_, values.data());
}

double StepState::read(int64_t index) const {
  double value = 0;
  copy_to_host(&value, values_, index * static_cast<int64_t>(sizeof value), sizeof value);
  return value;
}

}  // namespace witan
