// Measures activations in some steps (log_activations). The moments of the micro-batch under way go into the step's
// report, which ranks exchange anyhow, so that a step that measures has no call more than another one and takes no
// memory more.
#pragma once

#include <cstdint>

#include "witan/model/activation_statistics.h"
#include "witan/train/step/step_feature.h"

namespace witan {

class StepActivations : public StepFeature, public ActivationAccess {
 public:
  // Measures every `interval`-th step.
  explicit StepActivations(int64_t interval) : interval_(interval) {}

  // Whether the next step measures.
  bool wanted() const { return wanted_; }

  void offer(ModelServices& services) override { services.activations = this; }
  void allocate(const StepShape& shape) override { report_ = &shape.report; }
  void before_step(int64_t iteration) override { wanted_ = iteration % interval_ == 0; }
  bool launches_all() const override { return wanted_; }
  void set_launches_all(bool all) override { wanted_ = all; }
  void report(const StepReport::Result& read, StepResult& result) override;

  void begin_pass(Pass pass, int64_t micro_batch) override { micro_batch_ = pass == Pass::forward ? micro_batch : -1; }
  void end_pass() override { micro_batch_ = -1; }

  Tensor moments(int64_t layer, Activation of) override {
    return wanted_ && micro_batch_ >= 0 ? report_->moments(micro_batch_, layer, of) : Tensor();
  }

 private:
  int64_t interval_;
  bool wanted_ = false;
  const StepReport* report_ = nullptr;  // of steps of this shape
  int64_t micro_batch_ = -1;            // in whose forward activations are measured; -1: there is none
};

}  // namespace witan
