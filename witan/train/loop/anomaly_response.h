// The response of a run to an anomalous step (train/loop/anomaly.h): the step is investigated and kept for
// `witan replay`, and the run continues without it, rewinds to a checkpoint, or ends (on_nan, on_spike).
#pragma once

#include <optional>
#include <string>

#include "witan/checkpoint/background_save.h"
#include "witan/report/events/events.h"
#include "witan/train/loop/anomaly.h"
#include "witan/train/state/run_folder.h"
#include "witan/train/state/train_state.h"

namespace witan {

class Recorder;

// One rank's side.
class AnomalyResponse {
 public:
  // All must outlive it. The group and stream of `saving` are used while no save is in progress. `recorder` is null
  // except on rank 0.
  AnomalyResponse(const ResolvedConfig& config, const RunFolder& folder, const std::string& tokenizer,
                  BackgroundSave& saving, Recorder* recorder);

  // The checkpoint to return to, and the event to record after the return.
  struct Return {
    Checkpoint checkpoint;
    AnomalyEvent event;
  };
  // Collective, while no save is in progress. `state` is that after the step. Returns nothing if the run continues
  // without the step's update. Throws DivergedError if it ends.
  std::optional<Return> meet(const AnomalousStep& anomaly, const TrainState& state);
  // Throws DivergedError after most_skipped steps in a row without an update. `spike`: whether the last of them was
  // one. `newest`: the step of this run's newest checkpoint.
  void require_updates(const TrainState& state, bool spike, std::optional<int64_t> newest) const;

 private:
  HostGroup& host() { return saving_.world(); }
  bool says(bool own);
  [[noreturn]] void end(const AnomalousStep& anomaly, AfterAnomaly after, const std::string& said);
  std::string way_out(const TrainState& state, std::optional<int64_t> newest) const;
  std::string where_to_resume(const TrainState& state, std::optional<int64_t> newest) const;
  std::string describe_unkept(const AnomalousStep& anomaly);
  void keep(const AnomalousStep& anomaly, const TrainState& state, AnomalyEvent& event);
  // The newest checkpoint before `step`, the first of the consecutive anomalous steps: a checkpoint from between them
  // has the weights that caused them.
  std::optional<Checkpoint> checkpoint_to_return_to(int64_t step);

  const ResolvedConfig& config_;
  const RunFolder& folder_;
  const std::string& tokenizer_;
  BackgroundSave& saving_;
  Recorder* const recorder_;
  std::string bad_values_;       // AnomalyFindings::values of the consecutive skipped steps, on every rank
  bool told_of_unkept_ = false;  // whether the run has said why it keeps no more steps
};

}  // namespace witan
