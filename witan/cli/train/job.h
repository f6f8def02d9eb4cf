// Shared by `witan train` and `witan bench step`, where a launcher starts several processes that run the ranks of one
// job.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "witan/cli/command.h"
#include "witan/comm/cuda.h"
#include "witan/comm/processes/process_world.h"
#include "witan/planner/plan.h"
#include "witan/train/config/resolve.h"

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

}  // namespace witan::cli
