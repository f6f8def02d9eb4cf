// Which steps measure activations (log_activations), and where the moments of the micro-batch under way go: into the
// step's report, which ranks exchange anyhow, so that a step that measures has no call more than another one and takes
// no memory more.
#pragma once

#include <cstdint>

#include "witan/model/transformer.h"
#include "witan/train/step/step_report.h"

namespace witan {

class StepActivations : public ActivationAccess {
 public:
  // Whether the next step measures.
  void want(bool wanted) { wanted_ = wanted; }
  bool wanted() const { return wanted_; }

  // Between these two; outside of them nothing is measured.
  void begin(const StepReport& report, int64_t micro_batch) {
    report_ = &report;
    micro_batch_ = micro_batch;
  }
  void end() { report_ = nullptr; }

  Tensor moments(int64_t layer, Activation of) override {
    return wanted_ && report_ != nullptr ? report_->moments(micro_batch_, layer, of) : Tensor();
  }

 private:
  bool wanted_ = false;
  const StepReport* report_ = nullptr;
  int64_t micro_batch_ = 0;
};

}  // namespace witan
