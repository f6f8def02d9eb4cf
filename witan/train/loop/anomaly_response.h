// What a run does about a step that was not to be (train/loop/anomaly.h): it is investigated and kept for
// `witan replay`, and the run skips it, goes back to a checkpoint, or ends (on_nan, on_spike).
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
  // All must outlive it. `saving`: whose group and stream serve while no save is in progress. `recorder`: of rank 0,
  // null elsewhere.
  AnomalyResponse(const ResolvedConfig& config, const RunFolder& folder, const std::string& tokenizer,
                  BackgroundSave& saving, Recorder* recorder);

  // A checkpoint to go back to, and what is to be recorded once the run has.
  struct Return {
    Checkpoint checkpoint;
    AnomalyEvent event;
  };
  // Collective, while no save is in progress. `state`: after the step. Returns nothing where the run continues without
  // the step's update. Throws DivergedError where it ends.
  std::optional<Return> meet(const AnomalousStep& anomaly, const TrainState& state);
  // Throws DivergedError after most_skipped steps in a row without an update. `spike`: what the last of them was.
  // `newest`: the step of the newest checkpoint of this run.
  void require_updates(const TrainState& state, bool spike, std::optional<int64_t> newest) const;

 private:
  HostGroup& host() { return saving_.world(); }
  bool says(bool own);
  [[noreturn]] void end(const AnomalousStep& anomaly, AfterAnomaly after, const std::string& said);
  std::string way_out(const TrainState& state, std::optional<int64_t> newest) const;
  std::string where_to_resume(const TrainState& state, std::optional<int64_t> newest) const;
  std::string describe_unkept(const AnomalousStep& anomaly);
  void keep(const AnomalousStep& anomaly, const TrainState& state, AnomalyEvent& event);
  // The newest of before `step`, the first of those that went wrong one after the other: one that was saved in between
  // has the weights with which they did.
  std::optional<Checkpoint> checkpoint_to_return_to(int64_t step);

  const ResolvedConfig& config_;
  const RunFolder& folder_;
  const std::string& tokenizer_;
  BackgroundSave& saving_;
  Recorder* const recorder_;
  std::string bad_values_;       // AnomalyFindings::values of the steps skipped in a row, on every rank
  bool told_of_unkept_ = false;  // why steps are not kept any more is said once
};

}  // namespace witan
