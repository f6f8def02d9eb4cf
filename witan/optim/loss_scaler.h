// The loss scale of float16 models multiplies losses before the backward, so that small gradients are not rounded to 0.
// It is adapted on the device (kernels::adapt_loss_scale), like that of Megatron-LM's DynamicGradScaler.
#pragma once

#include "witan/optim/config.h"
#include "witan/optim/step_state.h"

namespace witan {

class LossScaler {
 public:
  // The stream must outlive this object.
  LossScaler(Stream& stream, const OptimizerConfig& config);

  // [3] float64, as kernels::scale_losses reads it.
  const Tensor& tensor() const { return values_; }

  // Call before clip(). total: of the scaled gradients; becomes that of the gradients.
  void unscale(const Tensor& total);
  // Call after clip(), and before anything but an overflow may skip the step. Ranks get the same scale.
  void adapt(const StepState& step);

  // For checkpoints; restore() continues to the bit. A scale that the configuration fixes stays fixed.
  struct State {
    double scale = 0;  // of the next step; 0: none is stored
    double growth = 0, hysteresis = 0;
  };
  State read() const;  // waits for the stream
  void restore(const State& state);
  void reset();  // to the state of a new run

 private:
  void write(const State& state);

  Stream& stream_;
  kernels::LossScaleArgs args_;
  Tensor values_;
  double initial_scale_;
};

}  // namespace witan
