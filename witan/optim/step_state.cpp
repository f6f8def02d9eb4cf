#include "witan/optim/step_state.h"

#include <array>
#include <cassert>

namespace witan {

StepState::StepState(Stream& stream, size_t groups)
    : stream_(stream),
      values_(
          stream.zeros({kernels::kStepValues + static_cast<int64_t>(groups) - 1}, DType::f64, MemoryTag::optimizer)),
      common_(values_.narrow(0, 0, kernels::kStepValues)) {}

void StepState::set(const std::vector<double>& learning_rates, int64_t iteration, int64_t update,
                    double weight_decay_share) {
  std::vector<double> values(static_cast<size_t>(values_.elements()));
  assert(values.size() == kernels::kStepValues + learning_rates.size() - 1);
  for (size_t group = 0; group < learning_rates.size(); ++group)
    values[static_cast<size_t>(kernels::step_value::learning_rate_of(static_cast<int64_t>(group)))] =
        learning_rates[group];
  values[kernels::step_value::gradient_scale] = 1;
  values[kernels::step_value::update] = static_cast<double>(update);
  values[kernels::step_value::skip] = 0;
  values[kernels::step_value::iteration] = static_cast<double>(iteration);
  values[kernels::step_value::weight_decay] = weight_decay_share;
  stream_.write(values_, values.data());
  update_ = update;
}

double StepState::read(int64_t index) const {
  std::array<double, kernels::kStepValues> values{};
  stream_.read(values.data(), common_);
  return values[static_cast<size_t>(index)];
}

}  // namespace witan
