// Steps that were not to be: their gradients were not finite, or they were a spike (skip_step_sigma). The device has
// left out their update by then, on all ranks alike, and the weights are those before the step. Here it is found out
// where the values come from, and what the step was computed from is written to a folder that `witan replay` computes
// it again from (docs/reliability.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/base/json.h"
#include "witan/checkpoint/store.h"
#include "witan/train/config/resolve.h"
#include "witan/train/step/engine.h"

namespace witan {

// What follows such a step: on_nan, on_spike.
enum class AfterAnomaly : uint8_t { skip, rewind, stop };
AfterAnomaly after_anomaly(const TrainConfig& config, const StepResult& result);

// Who computes a step, and from what.
struct AnomalousStep {
  Engine& engine;
  const Layout& layout;
  const std::vector<Batch>& batches;  // the rank's whole micro-batches
  int64_t step = 0, updates = 0;      // as Engine::step() was given
  const StepResult& result;
};

// What is known of it. On rank 0; elsewhere nothing.
struct AnomalyFindings {
  std::string text;            // a sentence: where the first value that is not finite is, on which ranks
  std::string values;          // "NAME: 5 NaN and 3 more", of parameters and buffers; empty: all of them are finite
  Json ranks = Json::array();  // of each rank: "rank", "first", "values", "gradients"
};

// Collective over `host`, a group of all ranks on a stream of the host. Of a step that is not finite: reads the ranks'
// values and gradients, and computes the step's passes again, watched. Of a spike nothing is looked for.
AnomalyFindings investigate(Group& host, Stream& stream, const AnomalousStep& anomaly);

// Of a folder of anomalies, below the run's: FOLDER/step-N is a checkpoint (checkpoint/store.h) of values and buffers,
// and of the step's global batch as kBatchTensors of [micro-batches, sequences, sequence length]. Collective likewise;
// `scalars` and `files` are rank 0's. Returns the folder. Throws what save_checkpoint() throws.
inline constexpr const char* kAnomaly = "anomaly";  // the scalar that says what it is
fs::path write_anomaly(Group& host, Stream& stream, const fs::path& folder, const AnomalousStep& anomaly, Json scalars,
                       std::vector<std::pair<std::string, std::string>> files);

// Such a folder, opened: the step, and its configuration with all work done by one rank.
struct RecordedAnomaly {
  Checkpoint checkpoint;
  ResolvedConfig config;
  std::vector<Batch> batches;  // of the global batch
  int64_t step = 0, updates = 0;
  Json about;  // what was known of it
};
// Throws CheckpointError for a folder that is none, or damaged.
RecordedAnomaly open_anomaly(const fs::path& folder);

}  // namespace witan
