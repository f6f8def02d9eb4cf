#include "witan/optim/loss_scaler.h"

#include <array>

namespace witan {

LossScaler::LossScaler(Stream& stream, const OptimizerConfig& config)
    : stream_(stream),
      args_{.least = config.min_loss_scale,
            .window = config.loss_scale_window,
            .hysteresis = config.hysteresis,
            .dynamic = config.loss_scale == 0},
      values_(stream.empty({kernels::kLossScalerValues}, DType::f64, MemoryTag::optimizer)),
      initial_scale_(args_.dynamic ? config.initial_loss_scale : config.loss_scale) {
  reset();
}

void LossScaler::unscale(const Tensor& total) {
  kernels::unscale_total(stream_, total, values_);
}

void LossScaler::adapt(const StepState& step) {
  kernels::adapt_loss_scale(stream_, step.common(), values_, args_);
}

LossScaler::State LossScaler::read() const {
  std::array<double, kernels::kLossScalerValues> values{};
  stream_.read(values.data(), values_);
  return {values[kernels::loss_scaler::scale], values[kernels::loss_scaler::growth],
          values[kernels::loss_scaler::hysteresis]};
}

void LossScaler::restore(const State& state) {
  if (args_.dynamic && state.scale > 0) write(state);
}

void LossScaler::reset() {
  write({initial_scale_, 0, static_cast<double>(args_.hysteresis)});
}

void LossScaler::write(const State& state) {
  std::array<double, kernels::kLossScalerValues> values{};
  values[kernels::loss_scaler::scale] = state.scale;
  values[kernels::loss_scaler::growth] = state.growth;
  values[kernels::loss_scaler::hysteresis] = state.hysteresis;
  stream_.write(values_, values.data());
}

}  // namespace witan
