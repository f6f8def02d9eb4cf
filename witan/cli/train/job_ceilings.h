// The combined peak of the processes of a job. A launcher may bind each of them to some of its host's cores (Open MPI
// does, to one), so that none can measure for the others.
#pragma once

#include <bitset>
#include <functional>
#include <string>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/comm/processes/process_world.h"
#include "witan/kernels/gemm/ceiling.h"

namespace witan::cli {

// The measurement by one process of its own threads, while all others measured theirs.
struct ProcessCeilings {
  std::string host;
  std::bitset<1024> cores;  // of the host that it may use
  int most_cores = 0;       // of these at the same time, by the quota of its control group
  int threads = 0;          // number of threads that it measured with
  double core_share = 1;    // share of the time that they wanted a core, in which they had one
  kernels::DeviceCeilings ceilings;
};

struct JobCeilings {
  kernels::DeviceCeilings ceilings;  // of all hosts
  bool busy = false;                 // other programs used one of the hosts: the ceilings are too low
};

// Threads that share cores, within a process or of several, may each appear for a while to have one to themselves: the
// sum is limited to what the host's cores can do.
JobCeilings sum_of_processes(const std::vector<ProcessCeilings>& processes);

// Collective, for ranks on the CPU: every process calls `measure` at the same time, with a pool of as many threads as
// its ranks compute with, or as it has cores. All get the sum.
JobCeilings measure_job(ProcessWorld& world, int64_t ranks_per_process, int64_t threads_per_rank,
                        const std::function<kernels::DeviceCeilings(ThreadPool&)>& measure);

}  // namespace witan::cli
