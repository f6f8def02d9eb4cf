// Skips steps whose loss or gradient norm is a spike (skip_step_sigma), by the losses of all ranks' micro-batches.
#pragma once

#include <optional>
#include <vector>

#include "witan/optim/spike_skip.h"
#include "witan/parallel/groups.h"
#include "witan/train/state/train_state.h"
#include "witan/train/step/step_feature.h"

namespace witan {

// The losses of a step's micro-batches on every rank, before the step ends.
class LossGather {
 public:
  // `micro_batches`: of each rank. Groups must outlive it.
  LossGather(Stream& stream, const Groups& groups, int64_t micro_batches);

  // Collective over all ranks. `own`: this rank's losses, [1] float64 each; empty if it computes none.
  void gather(Stream& stream, const std::vector<Tensor>& own);

  const Tensor& losses() const { return all_; }  // [ranks * micro_batches] float64
  // [M] int64: the places of those that make up the step's loss, in the order of ranks: each token counts once.
  const Tensor& order() const { return order_; }

 private:
  Group& world_;
  Tensor all_, own_, order_;
};

class SpikeSkipping : public StepFeature {
 public:
  // The arguments must outlive it.
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
  std::optional<LossGather> losses_;  // for the micro-batches of a step
};

}  // namespace witan
