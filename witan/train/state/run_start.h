// The start of a run: its folder, the checkpoint in it that it resumes from, and its debugging and tracing options.
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

// What a person debugs or traces this call with, and what tests disturb it with.
struct RunAids {
  std::vector<int> debug_ranks = {};  // each waits for a debugger before it begins
  std::FILE* out = stderr;            // where they say so
  std::optional<StepRange> trace = {};
  // Called by each rank before a step with its micro-batches: damages them, or what the engine holds.
  std::function<void(int rank, int64_t step, std::vector<Batch>& batches, Engine& engine)> before_step = {};
};

// A run's folder, and the checkpoint in it that the run resumes from.
struct RunStart {
  const RunFolder& folder;
  std::optional<Checkpoint> from;     // verified; nothing: a new run
  std::vector<std::string> warnings;  // damaged checkpoints that were passed over
  std::string config = {};            // written to config.toml once every rank is ready to train; empty: nothing is
  RunAids aids = {};
  std::vector<std::string> told = {};  // what people were warned of before train.log was open, which is to have it too
  bool branches = false;               // `from` is another run's (init_state = training), and this one has none yet
  int64_t step() const { return from ? from->step : 0; }
};
// A scalar of checkpoints that hold imported weights alone.
inline constexpr const char* kImported = "imported";
// Throws CheckpointError when there are checkpoints and none is whole, or none where there must have been one
// (lost_checkpoints): a run must not quietly begin again over them; ConfigError when it was imported, which is no
// training to resume, and where init_state = training names no training that goes on.
RunStart find_start(const RunFolder& folder, const TrainConfig& train);
// The checkpoint that a new run goes on from with init_state = training. Throws as find_start() does, and ConfigError
// where no step is left to do.
Checkpoint find_branched(const TrainConfig& train, std::vector<std::string>& warnings);
// Of a run's folder that has no checkpoint: that its metrics.jsonl records one, and what to do. Nothing of a run that
// ended before its first one, which begins again.
std::optional<std::string> lost_checkpoints(const fs::path& run);
// Why a run that was imported into this folder is not resumed, and what to do.
std::string not_resumable(const fs::path& imported);

}  // namespace witan
