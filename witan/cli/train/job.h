// Shared by `witan train` and `witan bench step`, where a launcher starts several processes that run the ranks of one
// job.
#pragma once

#include <bitset>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/cli/command.h"
#include "witan/comm/cuda.h"
#include "witan/comm/processes/process_world.h"
#include "witan/kernels/gemm/ceiling.h"
#include "witan/planner/plan.h"
#include "witan/train/run/resolve.h"

namespace witan::cli {

// Runs `body` in the only process, or in each of several. In a job only rank 0 prints messages: the others print only
// if they fail, and a ConfigError of theirs names the process.
ExitCode run_process(Context& context, const std::optional<Launch>& launch,
                     const std::function<ExitCode(Context&)>& body);

// The ranks of each process, before the processes have met. What no ranks could train each process refuses for itself:
// none waits for one that has done so. Throws ConfigError, DeviceError.
int64_t ranks_of_process(const RunConfig& given, const Launch& launch);

// What the launcher has decided, once the processes have met; null: the only process.
std::optional<LaunchedRanks> launched_ranks(const ProcessWorld* world, const std::optional<Launch>& launch);

// Of a process that its launcher binds to fewer cores than its share of the host's; empty: of any other.
std::string binding_warning(const ProcessWorld* world, const std::optional<Launch>& launch);

// The share of a plan's memory that is used by the given number of ranks and processes.
Plan part_of(Plan plan, int64_t ranks, int64_t ranks_per_process);
// The share of the ranks of this host. Null: of the only process.
Plan part_of_host(const Plan& plan, const RunConfig& config, const ProcessWorld* world);

// Which ranks reach each other's GPU memory, in a run of several processes that exchange experts' rows between GPUs;
// nothing in any other, and where the environment forbids it. The config is resolved: collective.
cuda::PeerIslands peers_of_job(ProcessWorld& world, const RunConfig& config);

// The usable GPU memory of the process that has least, the same on all: collective.
int64_t least_gpu_memory(ProcessWorld& world, const RunConfig& config);

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
