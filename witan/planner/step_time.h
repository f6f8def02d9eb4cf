// How long a step will take: what the plan counted, over what the machine was measured to do.
#pragma once

#include <map>
#include <string>

#include "witan/planner/ceilings.h"
#include "witan/planner/plan.h"

namespace witan {

struct StepTime {
  double seconds = 0;                   // of one step
  std::map<std::string, double> parts;  // of it, by part of the model; "exchange": between ranks
  double look_seconds = 0;              // of evaluating one micro-batch on every rank
};

// Of the rank that takes longest, with an even load of the experts. A kernel takes its FLOPs or its bytes, whichever
// bound it when it was measured, over its measured rate; one that was not measured goes at the mean rate of all.
// Exchanges take their bytes over the measured rate, without waiting for peers; of a pipeline's stages the bubble says
// how long they wait. More ranks than were measured at once,
// which is as many as there are cores, take turns.
StepTime predict_step(const Plan& plan, const RunConfig& config, const Ceilings& ceilings);

// The run's steps that are left after `done`, with its looks at held-out text; without checkpoints.
double predict_run(const StepTime& step, const RunConfig& config, int64_t done);

}  // namespace witan
