// The start of a run: its folder, the checkpoint that it resumes from, and its debugging and tracing options.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "witan/checkpoint/store.h"
#include "witan/data/batches/batch.h"
#include "witan/train/config/config.h"
#include "witan/train/state/run_folder.h"

namespace witan {

class Engine;

// Debugging and tracing options of one call, and a hook with which tests disturb it.
struct RunAids {
  std::vector<int> debug_ranks = {};  // each waits for a debugger before it begins
  std::FILE* out = stderr;            // where they report that they wait
  std::optional<StepRange> trace = {};
  // Each rank calls it before a step with its micro-batches, which it may damage, as it may the engine's state.
  std::function<void(int rank, int64_t step, std::vector<Batch>& batches, Engine& engine)> before_step = {};
};

// A run's folder, and the checkpoint in it that the run resumes from.
struct RunStart {
  const RunFolder& folder;
  std::optional<Checkpoint> from;     // verified; nothing for a new run
  std::vector<std::string> warnings;  // about damaged checkpoints that were skipped
  std::string config = {};  // written to config.toml once every rank is ready to train; empty: config.toml stays
  RunAids aids = {};
  std::vector<std::string> early_warnings = {};  // warnings from before train.log was open, for that file
  bool branches = false;  // `from` belongs to another run (init_state = training), and this run has no checkpoint yet
  int64_t step() const { return from ? from->step : 0; }
};
// The scalar that marks checkpoints with only imported weights.
inline constexpr const char* kImported = "imported";
// Finds the newest intact checkpoint of the run. Throws CheckpointError if there are only damaged checkpoints, or all
// are lost (lost_checkpoints), since a run must not silently start over; ConfigError if the run was imported and has no
// training to resume, and what find_branched() throws.
RunStart find_start(const RunFolder& folder, const TrainConfig& train);
// The checkpoint from which a new run with init_state = training continues. Throws CheckpointError, and ConfigError if
// there is none, it was imported, or no step is left.
Checkpoint find_branched(const TrainConfig& train, std::vector<std::string>& warnings);
// For a run's folder without a checkpoint: an error message if metrics.jsonl records one. Nothing for a run that ended
// before its first checkpoint, which starts over.
std::optional<std::string> lost_checkpoints(const fs::path& run);
// The error message for resuming an imported run.
std::string not_resumable(const fs::path& imported);

}  // namespace witan
