// Trains a run from its first step or its last checkpoint to its end.
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
  RunEnd end = RunEnd::none;    // the same in each process; the run is saved in every case
  ValidationRecord validation;  // of the evaluations until then
  int64_t step = 0;
  int64_t resumed_from = 0;  // step; 0: a new run
  std::optional<double> bits_per_byte, baseline_bits_per_byte;
  int64_t evaluated_at = 0;               // the step of bits_per_byte
  double best_gflops = 0;                 // of the fastest step; 0: there was no step
  std::string sample;                     // the continuation of sample_prompt, if the run is finished
  std::vector<MemoryEvent> memory;        // measured, of each rank; in rank 0's process
  std::optional<uint64_t> peak_resident;  // bytes, of the process; nothing if unknown
};

// Trains the ranks of `world` that belong to this process or, without a world, config.parallel.ranks threads. Before
// the first step all ranks compare their configurations and calls (start_check.h). A given world must have been made
// with the debug_ranks of start.aids. `run` describes the run in the report, which the process of rank 0 writes.
// Rethrows the error that stopped a rank; complete checkpoints stay.
RunResult train(const ResolvedConfig& config, const RunPlan& plan, const RunData& data, const RunStart& start,
                const RunEvent& run, Progress& progress, World* world = nullptr);

}  // namespace witan
