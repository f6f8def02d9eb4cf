// Compares ranks that must hold the same state (parallel/state_check.h): after initialization and in every step with
// check_states, and on request (check_states_interval).
#pragma once

#include "witan/parallel/state_check.h"
#include "witan/train/step/step_features.h"

namespace witan {

class StateChecks : public StepFeature {
 public:
  // With check_states this is a collective that compares initial values.
  explicit StateChecks(const StepParts& parts);

  // Collective, not within a step, since it waits for the stream. Throws CommError if values, buffers or optimizer
  // state differ between ranks that must hold the same.
  void check();

  void after_passes() override;
  void report(const StepReport::Result& read, StepResult& result) override;

 private:
  Stream& stream_;
  UnitStore& units_;
  const ShardPlan& shards_;
  const Optimizer& optimizer_;
  StateCheck check_;
  bool every_step_;
};

}  // namespace witan
