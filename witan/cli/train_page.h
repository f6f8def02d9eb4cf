// What `witan train` says before and after it trains: the plan in some lines, and what came of the run.
#pragma once

#include <cstdio>

#include "witan/base/file.h"
#include "witan/cli/commands.h"
#include "witan/cli/planning.h"
#include "witan/report/progress.h"
#include "witan/train/trainer.h"

namespace witan::cli {

// Of a run that goes on after `done` steps with another schedule: a jump of the learning rate must not come as a
// surprise.
void announce_schedule(const RunConfig& before, const RunConfig& now, int64_t done, Progress& progress);

// Model, ranks, layout, libraries and work, before the first step.
void announce(const RunConfig& config, const Plan& plan, const Timing& timing, int64_t done, Progress& progress);

// Where a run is summed up: with log_format = megatron its lines are all that the standard output holds.
std::FILE* talk(const Context& context, const RunConfig& config);

// What came of it, where `report` is, and the commands to go on with.
void summarise(const Context& context, const RunConfig& config, const RunPlan& promised, const RunResult& result,
               const fs::path& report);

// Flags that a finished run has no use for: there is nothing left to train.
void say_unused(std::FILE* out, RunConfig before, RunConfig asked);
void say_finished(const Context& context, std::FILE* out, const RunConfig& config, const RunFolder& folder,
                  int64_t done);

}  // namespace witan::cli
