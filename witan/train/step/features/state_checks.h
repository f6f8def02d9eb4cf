// Compares ranks that must hold the same (parallel/state_check.h): after initialization and in every step with
// check_states, and when it is asked to (check_states_interval).
#pragma once

#include "witan/parallel/state_check.h"
#include "witan/train/step/step_features.h"

namespace witan {

class StateChecks : public StepFeature {
 public:
  // With check_states a collective, which compares initial values.
  explicit StateChecks(const StepParts& parts);

  // Collective, and not within a step: it waits for the stream. Throws CommError where ranks that hold the same values,
  // buffers or optimizer state differ.
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
