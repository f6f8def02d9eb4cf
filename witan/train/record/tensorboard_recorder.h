// Writes TensorBoard's event files of a run, with its configuration, Megatron-LM's tags and the load of experts.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "witan/moe/statistics.h"
#include "witan/report/events/events.h"
#include "witan/report/progress/log_lines.h"
#include "witan/report/tensorboard/tfevents.h"
#include "witan/train/run/config.h"
#include "witan/train/run/train_state.h"

namespace witan {

// Every key of config.toml with the value that the run has. `given`: what the configuration was resolved from; keys
// that are not at their defaults there differ.
std::vector<tfevents::Hyperparameter> hyperparameters_of(RunConfig config, RunConfig given);

class TensorboardRecorder {
 public:
  // `given`: as for hyperparameters_of(). `first_step`: the first that this process trains. Throws IoError,
  // DiskFullError.
  TensorboardRecorder(const RunConfig& config, const RunConfig& given, const fs::path& folder, int64_t first_step);

  // What a line of metrics.jsonl says. `samples`: of the step's global batch. `iteration_s`: seconds of a step, mean
  // since the last line. `router`: the step's statistics, of the model's `layers`.
  void step(const TrainState& state, const StepEvent& event, int64_t samples, double iteration_s,
            const std::vector<int64_t>& layers, const StepStatistics& router);
  // Statistics of activations by name, of each layer; NaN: it has none.
  void activations(int64_t step, const std::map<std::string, std::vector<double>>& statistics);
  // `router`: the evaluation's statistics, of which those in event.router are written, with " validation" behind the
  // tags of steps.
  void evaluation(const EvalEvent& event, const StepStatistics& router = {});
  // With log_format = megatron, under its names: the parts of a step, of the slowest rank.
  void interval(int64_t step, const std::vector<megatron_log::RankTimes>& times);
  // Under Megatron-LM's names: rank 0's arena after a step, with the number of blocks that are allocated there.
  void memory_in_use(int64_t step, const megatron_log::Memory& memory, int64_t blocks);
  // The peak of each rank's arena, at the end of the run.
  void memory(int64_t step, const std::vector<MemoryEvent>& measured);
  // Not of a run that was stopped and may be resumed.
  void end(tfevents::SessionStatus status) { session_.end(status); }

 private:
  int64_t ranks_;
  bool megatron_layers_;  // values of layers under Megatron-LM's names too
  tfevents::SessionFile session_;
  tfevents::Writer writer_;
};

}  // namespace witan
