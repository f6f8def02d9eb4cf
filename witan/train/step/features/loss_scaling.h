// The loss scale of float16 models, and the clipping of gradients, which are multiplied by the scale until then.
#pragma once

#include "witan/optim/clip.h"
#include "witan/optim/loss_scaler.h"
#include "witan/train/state/train_state.h"
#include "witan/train/step/step_feature.h"

namespace witan {

// Limits the norm of the gradients, and skips the update if the norm is not finite.
class GradientClipping : public StepFeature {
 public:
  // The stream and the state must outlive it.
  GradientClipping(Stream& stream, const StepState& state, double max_norm)
      : stream_(stream), state_(state), max_norm_(max_norm) {}

  // Gradients are multiples of this scale, which must outlive it.
  void unscale_by(LossScaler& scaler) { scaler_ = &scaler; }

  void before_update(const Tensor& total) override {
    if (scaler_) scaler_->unscale(total);
    clip(stream_, state_, total, max_norm_);
  }

 private:
  Stream& stream_;
  const StepState& state_;
  double max_norm_;
  LossScaler* scaler_ = nullptr;  // null: gradients are not scaled
};

class LossScaling : public StepFeature {
 public:
  LossScaling(Stream& stream, const OptimizerConfig& config, const StepState& state)
      : scaler_(stream, config), state_(state) {}

  LossScaler& scaler() { return scaler_; }
  const LossScaler* loss_scaler() const override { return &scaler_; }

  void before_update(const Tensor& /*total*/) override { scaler_.adapt(state_); }
  void report(const StepReport::Result& /*read*/, StepResult& result) override {
    result.scalars.set(kLossScale, scaler_.read().scale);
  }
  void save(TrainState& state) const override { state.loss_scaler = scaler_.read(); }
  void restore(const TrainState& state, bool anew) override {
    anew ? scaler_.reset() : scaler_.restore(state.loss_scaler);
  }

 private:
  LossScaler scaler_;
  const StepState& state_;
};

}  // namespace witan
