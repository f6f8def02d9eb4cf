// The planned memory of a run: arenas reserve it, and recorders compare it with the memory that was used.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/report/events/events.h"

namespace witan {

struct RunPlan {
  std::vector<MemoryEvent> memory = {};      // of each rank; its peak is what its arena reserves, and never grows
  int64_t resident_bytes = 0;                // the most that the process takes: arenas, and the reserve for all else
  bool on_gpu = false;                       // arenas are GPUs' memory and no part of the process's
  double step_flops = 0;                     // of one step, all ranks
  double step_seconds = 0;                   // predicted; 0: not
  double ceiling_gflops = 0;                 // measured, all ranks' threads together
  std::vector<std::string> slow_paths = {};  // sentences, of a step's kernels that others would be faster than
};

}  // namespace witan
