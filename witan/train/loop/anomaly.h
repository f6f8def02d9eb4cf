// Anomalous steps: those with non-finite gradients or a loss spike (skip_step_sigma). The device has already left out
// their update, on all ranks alike, so that the weights are those from before the step. This finds where the values
// come from, and writes the inputs of the step to a folder from which `witan replay` computes it again
// (docs/reliability.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/base/json.h"
#include "witan/checkpoint/store.h"
#include "witan/train/config/resolve.h"
#include "witan/train/step/engine.h"

namespace witan {

// The action after such a step, by on_nan or on_spike.
enum class AfterAnomaly : uint8_t { skip, rewind, stop };
AfterAnomaly after_anomaly(const TrainConfig& config, const StepResult& result);

// An anomalous step of one rank.
struct AnomalousStep {
  Engine& engine;
  const Layout& layout;
  const std::vector<Batch>& batches;  // the rank's micro-batches
  int64_t step = 0, updates = 0;      // the arguments of Engine::step()
  const StepResult& result;
};

// The findings about it, on rank 0; empty on other ranks.
struct AnomalyFindings {
  std::string text;            // a sentence: where the first non-finite value is, on which ranks
  std::string values;          // names of parameters and buffers with non-finite values; empty if there are none
  Json ranks = Json::array();  // for each rank: "rank", "first", "values", "gradients"
};

// For a step with non-finite gradients: reads the ranks' values and gradients, and computes the passes again while it
// checks each result. Nothing is searched for after a spike. Collective over `host`, a group of all ranks on a stream
// of the host.
AnomalyFindings investigate(Group& host, Stream& stream, const AnomalousStep& anomaly);

// Writes FOLDER/step-N, a checkpoint (checkpoint/store.h) of values and buffers, and of the step's global batch as
// tensors "batch.*" of [micro-batches, sequences, sequence length], or [micro-batches, sequences] for columns per
// sample. Collective over `host`; `scalars` and `files` are rank 0's. Returns the folder. Throws what save_checkpoint()
// throws.
inline constexpr const char* kAnomaly = "anomaly";  // the scalar that describes it
fs::path write_anomaly(Group& host, Stream& stream, const fs::path& folder, const AnomalousStep& anomaly, Json scalars,
                       std::vector<std::pair<std::string, std::string>> files);

// The content of such a folder, with the configuration changed to one rank.
struct RecordedAnomaly {
  Checkpoint checkpoint;
  ResolvedConfig config;
  std::vector<Batch> batches;  // the micro-batches of the global batch
  int64_t step = 0, updates = 0;
  Json about;  // the scalar kAnomaly
};
// Throws CheckpointError for another kind of folder, and for a damaged one.
RecordedAnomaly open_anomaly(const fs::path& folder);

}  // namespace witan
