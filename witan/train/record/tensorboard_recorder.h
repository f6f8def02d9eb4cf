// Writes a run's TensorBoard event files: its configuration, values under Megatron-LM's tags, and the load of experts.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "witan/moe/statistics.h"
#include "witan/report/events/events.h"
#include "witan/report/progress/log_lines.h"
#include "witan/report/tensorboard/tfevents.h"
#include "witan/train/config/config.h"
#include "witan/train/state/train_state.h"

namespace witan {

// Every key of config.toml with the run's value. `given` is the configuration before resolve(); keys that are not at
// their defaults in it are marked as different.
std::vector<tfevents::Hyperparameter> hyperparameters_of(RunConfig config, RunConfig given);

class TensorboardRecorder {
 public:
  // `given`: as for hyperparameters_of(). `first_step`: the first step of this process. Throws IoError,
  // DiskFullError.
  TensorboardRecorder(const RunConfig& config, const RunConfig& given, const fs::path& folder, int64_t first_step);

  // Writes the values of a line of metrics.jsonl. `samples`: of the step's global batch. `iteration_s`: seconds of a
  // step, mean since the last line. `router`: the step's statistics, of the model's `layers`.
  void step(const TrainState& state, const StepEvent& event, int64_t samples, double iteration_s,
            const std::vector<int64_t>& layers, const StepStatistics& router);
  // Statistics of activations by name, of each layer; NaN: it has none.
  void activations(int64_t step, const std::map<std::string, std::vector<double>>& statistics);
  // `router`: the evaluation's statistics; those in event.router are written, under the tags of steps followed by
  // " validation".
  void evaluation(const EvalEvent& event, const StepStatistics& router = {});
  // With log_format = megatron: the timers of a step on the slowest rank, under Megatron-LM's names.
  void interval(int64_t step, const std::vector<megatron_log::RankTimes>& times);
  // Rank 0's arena after a step and its number of allocated blocks, under Megatron-LM's names.
  void memory_in_use(int64_t step, const megatron_log::Memory& memory, int64_t blocks);
  // The peak of each rank's arena, at the end of the run.
  void memory(int64_t step, const std::vector<MemoryEvent>& measured);
  // Not called for a run that was stopped and can be resumed.
  void end(tfevents::SessionStatus status) { session_.end(status); }

 private:
  int64_t ranks_;
  bool megatron_layers_;  // also writes values of layers under Megatron-LM's names
  tfevents::SessionFile session_;
  tfevents::Writer writer_;
};

}  // namespace witan
