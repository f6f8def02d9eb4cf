// The loss scale of float16 models: what losses are multiplied by before the backward, so that small gradients are not
// rounded to 0, adapted on the device (kernels::adapt_loss_scale) as Megatron-LM's DynamicGradScaler does it.
#pragma once

#include "witan/optim/config.h"
#include "witan/optim/step_state.h"

namespace witan {

class LossScaler {
 public:
  // The stream must outlive it.
  LossScaler(Stream& stream, const OptimizerConfig& config);

  // [3] float64, as kernels::scale_losses reads it.
  const Tensor& tensor() const { return values_; }

  // Before clip(): total is that of scaled gradients, and becomes that of the gradients.
  void unscale(const Tensor& total);
  // After clip(), and before anything but an overflow skips the step. The same on every rank, as total is.
  void adapt(const StepState& step);

  // For checkpoints, and to continue from it to the bit. A scale that the configuration gives stays as it says.
  struct State {
    double scale = 0;  // of the next step; 0: there is none
    double growth = 0, hysteresis = 0;
  };
  State read() const;  // waits for the stream
  void restore(const State& state);

 private:
  void write(const State& state);

  Stream& stream_;
  kernels::LossScaleArgs args_;
  Tensor values_;
};

}  // namespace witan
