// Skips steps whose loss or gradient norm is a spike (skip_step_sigma), by the losses of all ranks' micro-batches.
#pragma once

#include <optional>

#include "witan/optim/spike_skip.h"
#include "witan/train/run/train_state.h"
#include "witan/train/step/features/loss_gather.h"
#include "witan/train/step/step_feature.h"

namespace witan {

class SpikeSkipping : public StepFeature {
 public:
  // What it is given must outlive it.
  SpikeSkipping(Stream& stream, const Groups& groups, const OptimizerConfig& config, const StepState& state)
      : stream_(stream),
        groups_(groups),
        state_(state),
        skip_(stream, config.skip_step_sigma, config.skip_step_window) {}

  void allocate(const StepShape& shape) override {
    report_ = &shape.report;
    losses_.emplace(stream_, groups_, shape.micro_batches);
  }
  void release() override { losses_.reset(); }
  void before_update(const Tensor& total) override {
    losses_->gather(stream_, report_->own_losses());
    skip_.decide(state_, total, losses_->losses(), losses_->order());
  }
  void save(TrainState& state) const override { state.spikes = skip_.read(); }
  void restore(const TrainState& state, bool /*anew*/) override { skip_.restore(state.spikes); }

 private:
  Stream& stream_;
  const Groups& groups_;
  const StepState& state_;
  SpikeSkip skip_;
  const StepReport* report_ = nullptr;
  std::optional<LossGather> losses_;  // of as many micro-batches as steps have
};

}  // namespace witan
