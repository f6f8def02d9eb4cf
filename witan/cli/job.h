// What `witan train` and `witan bench step` share where a launcher starts several processes, which run the ranks of one
// world together.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "witan/cli/command.h"
#include "witan/comm/processes/process_world.h"
#include "witan/planner/plan.h"
#include "witan/train/run/resolve.h"

namespace witan::cli {

// Runs `body` in the only process, or in one of several. There rank 0's alone talks: the others are heard only if they
// fail, and a ConfigError of theirs says whose it is.
ExitCode run_process(Context& context, const std::optional<Launch>& launch,
                     const std::function<ExitCode(Context&)>& body);

// The ranks of each process, before the processes have met. What no ranks could train each process refuses for itself:
// none waits for one that has done so. Throws ConfigError, DeviceError.
int64_t ranks_of_process(const RunConfig& given, const Launch& launch);

// What the launcher has decided, once the processes have met; null: the only process.
std::optional<LaunchedRanks> launched_ranks(const ProcessWorld* world, const std::optional<Launch>& launch);

// The part of a plan that so many ranks take of it, in processes of so many.
Plan part_of(Plan plan, int64_t ranks, int64_t ranks_per_process);
// That of the ranks of this host. Null: of the only process.
Plan part_of_host(const Plan& plan, const RunConfig& config, const ProcessWorld* world);

// What the process whose GPU has least memory can use of it, told to all: collective.
int64_t least_gpu_memory(ProcessWorld& world, const RunConfig& config);

}  // namespace witan::cli
