// Trains a run from its first step, or from its last checkpoint, to its end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "witan/comm/host_group.h"
#include "witan/report/events/events.h"
#include "witan/report/progress/progress.h"
#include "witan/train/config/resolve.h"
#include "witan/train/config/run_plan.h"
#include "witan/train/data/run_data.h"
#include "witan/train/state/run_end.h"
#include "witan/train/state/run_start.h"
#include "witan/train/state/train_state.h"

namespace witan {

struct RunResult {
  RunEnd end = RunEnd::none;    // the same in each process; saved, whatever it was
  ValidationRecord validation;  // of the evaluations until then
  int64_t step = 0;
  int64_t resumed_from = 0;  // step; 0: a new run
  std::optional<double> bits_per_byte, baseline_bits_per_byte;
  int64_t evaluated_at = 0;               // the step that bits_per_byte is of
  double best_gflops = 0;                 // of the fastest step; 0: none was made
  std::string sample;                     // what the model wrote after sample_prompt, if it finished
  std::vector<MemoryEvent> memory;        // of each rank, as its arena counted it; in rank 0's process
  std::optional<uint64_t> peak_resident;  // bytes, of the process; nothing where the system does not say
};

// Trains config.parallel.ranks ranks from `start`: those of `world` that are this process's, or, without one, a thread
// for each. Before anything is computed all ranks compare it, and the calls that they
// would make (start_check.h); a world that is given must have been made with the aids' debug_ranks. `run` describes the
// run for the report, which the process of rank 0 writes. Throws what stopped a rank; complete checkpoints stay.
RunResult train(const ResolvedConfig& config, const RunPlan& plan, const RunData& data, const RunStart& start,
                const RunEvent& run, Progress& progress, World* world = nullptr);

}  // namespace witan
