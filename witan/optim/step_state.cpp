#include "witan/optim/step_state.h"

#include <array>

namespace witan {

StepState::StepState(Stream& stream)
    : stream_(stream), values_(stream.zeros({kernels::kStepValues}, DType::f64, MemoryTag::optimizer)) {}

void StepState::set(double learning_rate, int64_t iteration, int64_t update) {
  std::array<double, kernels::kStepValues> values{};
  values[kernels::step_value::learning_rate] = learning_rate;
  values[kernels::step_value::gradient_scale] = 1;
  values[kernels::step_value::update] = static_cast<double>(update);
  values[kernels::step_value::skip] = 0;
  values[kernels::step_value::iteration] = static_cast<double>(iteration);
  stream_.write(values_, values.data());
}

double StepState::read(int64_t index) const {
  std::array<double, kernels::kStepValues> values{};
  stream_.read(values.data(), values_);
  return values[static_cast<size_t>(index)];
}

}  // namespace witan
