// Jobs of several processes that a launcher started, as `witan train` and `witan bench step` run them.
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
#include "witan/train/config/resolve.h"

namespace witan::cli {

// Runs `body` in this process, whether it is the only one or one of several. In a job only rank 0 prints messages;
// other processes print only errors, and their ConfigErrors name the process.
ExitCode run_process(Context& context, const std::optional<Launch>& launch,
                     const std::function<ExitCode(Context&)>& body);

// The ranks of each process, before the processes have met. Each process refuses an invalid configuration by itself, so
// that none waits for another that has ended. Throws ConfigError, DeviceError.
int64_t ranks_of_process(const RunConfig& given, const Launch& launch);

// The number of ranks that the launcher decided, once the processes have met. Nothing for a single process (null).
std::optional<LaunchedRanks> launched_ranks(const ProcessWorld* world, const std::optional<Launch>& launch);

// A warning if the launcher binds this process to fewer cores than its share of the host's; otherwise empty.
std::string binding_warning(const ProcessWorld* world, const std::optional<Launch>& launch);

// The plan with only the memory that the given number of ranks uses.
Plan part_of(Plan plan, int64_t ranks, int64_t ranks_per_process);
// The plan with only the memory of this host's ranks. `world` is null for a single process.
Plan part_of_host(const Plan& plan, const RunConfig& config, const ProcessWorld* world);

// The ranks that reach each other's GPU memory, in a run of several processes that exchange experts' rows between GPUs;
// nothing in other runs, or if the environment forbids it. `config` is resolved. Collective.
cuda::PeerIslands peers_of_job(ProcessWorld& world, const RunConfig& config);

// The usable GPU memory of the process with the least, in bytes; the same on all processes. Collective.
int64_t least_gpu_memory(ProcessWorld& world, const RunConfig& config);

// Measurements of one process with its own threads, made at the same time as all others'. A launcher may bind processes
// to some of their host's cores (Open MPI binds each to one), so none can measure for the others.
struct ProcessCeilings {
  std::string host;
  std::bitset<1024> cores;  // the host's cores that it may use
  int most_cores = 0;       // cores that it may use at the same time, by the quota of its control group
  int threads = 0;          // number of threads that it measured with
  double core_share = 1;    // time on a core over time that its threads were runnable
  kernels::DeviceCeilings ceilings;
};

struct JobCeilings {
  kernels::DeviceCeilings ceilings;  // of all hosts
  bool busy = false;                 // other programs used one of the hosts: the ceilings are too low
};

// The ceilings of all processes together. Threads that share a core may each measure it as their own for a while, so
// the sum is limited to what the host's cores can do.
JobCeilings sum_of_processes(const std::vector<ProcessCeilings>& processes);

// Measures the ceilings of a job on CPUs: every process calls `measure` at the same time, with a pool of as many
// threads as its ranks use, or as it has cores. All processes get the sum. Collective.
JobCeilings measure_job(ProcessWorld& world, int64_t ranks_per_process, int64_t threads_per_rank,
                        const std::function<kernels::DeviceCeilings(ThreadPool&)>& measure);

}  // namespace witan::cli
