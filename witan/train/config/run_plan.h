// The plan of a run that training uses: its memory, which arenas reserve and recorders compare with the memory used,
// and its predicted speed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/report/events/events.h"

namespace witan {

struct RunPlan {
  std::vector<MemoryEvent> memory = {};      // of each rank; the arena reserves its peak and never grows
  int64_t resident_bytes = 0;                // the process's upper bound: arenas plus the reserve
  int64_t offload_bytes = 0;                 // of these, pinned for activations (offload_activations)
  bool on_gpu = false;                       // arenas are in GPU memory, not in resident_bytes
  double step_flops = 0;                     // of one step, all ranks
  double step_seconds = 0;                   // predicted; 0: unknown
  double ceiling_gflops = 0;                 // measured, of all ranks' threads together
  std::vector<std::string> slow_paths = {};  // a sentence for each slow kernel of the step that could be avoided
};

}  // namespace witan
