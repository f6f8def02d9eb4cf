// What the processes of a job do at most together. A launcher may bind each of them to a part of its host's cores (Open
// MPI does, to one), so that none can measure for the others.
#pragma once

#include <bitset>
#include <functional>
#include <string>
#include <vector>

#include "witan/base/threads.h"
#include "witan/comm/processes/process_world.h"
#include "witan/kernels/device_ceiling.h"

namespace witan::cli {

// What one process measured of its own threads while all others measured theirs.
struct ProcessCeilings {
  std::string host;
  std::bitset<1024> cores;  // of the host, which it may use
  int most_cores = 0;       // of these at once, as its control group's quota allows
  int threads = 0;          // which it measured with
  double core_share = 1;    // of the time that they wanted a core, in which they had one
  kernels::DeviceCeilings ceilings;
};

struct JobCeilings {
  kernels::DeviceCeilings ceilings;  // of all hosts
  bool busy = false;                 // one of the hosts did other work meanwhile: the ceilings are too low
};

// Threads that share cores, within a process or of several, each look now and then as if they had one to themselves:
// a host does no more than its cores do.
JobCeilings sum_of_processes(const std::vector<ProcessCeilings>& processes);

// Collective, for ranks on the CPU: every process calls `measure` at the same time, with a pool of as many threads as
// its ranks compute with, or as it has cores. All are told the sum.
JobCeilings measure_job(ProcessWorld& world, int64_t ranks_per_process, int64_t threads_per_rank,
                        const std::function<kernels::DeviceCeilings(ThreadPool&)>& measure);

}  // namespace witan::cli
