// A run from its first step, or from its last checkpoint, to its end.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "witan/checkpoint/store.h"
#include "witan/comm/host_group.h"
#include "witan/report/events.h"
#include "witan/report/progress.h"
#include "witan/train/run/config.h"
#include "witan/train/run/run_data.h"
#include "witan/train/run/run_folder.h"
#include "witan/train/trace/step_tracer.h"

namespace witan {

// What the plan promised.
struct RunPlan {
  std::vector<MemoryEvent> memory = {};  // of each rank; its peak is what its arena reserves, and never grows
  int64_t resident_bytes = 0;            // the most that the process takes: arenas, and the reserve for all else
  bool on_gpu = false;                   // arenas are GPUs' memory and no part of the process's
  double step_flops = 0;                 // of one step, all ranks
  double step_seconds = 0;               // predicted; 0: not
  double ceiling_gflops = 0;             // measured, all ranks' threads together
};

struct RunResult {
  bool finished = false;  // false: a signal stopped it, and it was saved
  int64_t step = 0;
  int64_t resumed_from = 0;  // step; 0: a new run
  std::optional<double> bits_per_byte, baseline_bits_per_byte;
  int64_t evaluated_at = 0;               // the step that bits_per_byte is of
  double best_gflops = 0;                 // of the fastest step; 0: none was made
  std::string sample;                     // what the model wrote after sample_prompt, if it finished
  std::vector<MemoryEvent> memory;        // of each rank, as its arena counted it; in rank 0's process
  std::optional<uint64_t> peak_resident;  // bytes, of the process; nothing where the system does not say
};

// What a person looks at this call with.
struct RunAids {
  std::vector<int> debug_ranks = {};  // each waits for a debugger before it begins
  std::FILE* out = stderr;            // where they say so
  std::optional<StepRange> trace = {};
};

// A run's folder, and the checkpoint in it that the run goes on from.
struct RunStart {
  const RunFolder& folder;
  std::optional<Checkpoint> from;     // verified; nothing: a new run
  std::vector<std::string> warnings;  // damaged checkpoints that were passed over
  std::string config = {};            // written to config.toml once every rank is ready to train; empty: nothing is
  RunAids aids = {};
  int64_t step() const { return from ? from->step : 0; }
};
// Throws CheckpointError when there are checkpoints and none is whole: a run must not quietly begin again over them.
RunStart find_start(const RunFolder& folder);

// Trains config.parallel.ranks ranks from `start`: those of `world` that are this process's, or, without one, a thread
// for each. The config is resolved and valid. Before anything is computed all ranks compare it, and the calls that they
// would make (start_check.h); a world that is given must have been made with the aids' debug_ranks. `run` describes the
// run for the report, which the process of rank 0 writes. Throws what stopped a rank; complete checkpoints stay.
RunResult train(const RunConfig& config, const RunPlan& plan, const RunData& data, const RunStart& start,
                const RunEvent& run, Progress& progress, World* world = nullptr);

}  // namespace witan
