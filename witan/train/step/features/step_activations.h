// Measures activations in some steps (log_activations). The moments go into the step's report, which ranks exchange
// anyway, so that a step that measures makes no more collective calls than another and takes no more memory.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

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
  void report(const StepReport::Result& read, StepResult& result) override {
    if (!wanted_) return;
    const std::vector<StepReport::LayerMoments> layers = report_->activations(read);
    for (const ActivationStatistic& statistic : activation_statistics())
      for (const StepReport::LayerMoments& layer : layers) {
        const ActivationMoments& moments = layer[static_cast<size_t>(statistic.of)];
        result.activations[statistic.name].push_back(moments.elements > 0 ? statistic.compute(moments) : std::nan(""));
      }
  }

  void begin_pass(Pass pass, int64_t micro_batch) override { micro_batch_ = pass == Pass::forward ? micro_batch : -1; }
  void end_pass() override { micro_batch_ = -1; }

  Tensor moments(int64_t layer, Activation of) override {
    return wanted_ && micro_batch_ >= 0 ? report_->moments(micro_batch_, layer, of) : Tensor();
  }

 private:
  int64_t interval_;
  bool wanted_ = false;
  const StepReport* report_ = nullptr;  // of the present shape
  int64_t micro_batch_ = -1;            // in whose forward activations are measured; -1: there is none
};

}  // namespace witan
