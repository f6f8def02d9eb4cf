// How long a step will take: what the plan counted, over what the machine was measured to do.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "witan/planner/plan.h"
#include "witan/planner/speeds/ceilings.h"
#include "witan/planner/speeds/cluster.h"

namespace witan {

struct StepTime {
  double seconds = 0;                   // of one step
  std::map<std::string, double> parts;  // of it, by part of the model; "exchange": between ranks
  double eval_seconds = 0;              // of evaluating one micro-batch on every rank
};

// Of the rank that takes longest, with an even load of the experts; of a pipeline, whose schedule is played with the
// times of each stage's passes (planner/time/rank_time.h), of all stages together, and "bubble" is what the slowest
// one waits.
//
// On a CPU a call of a kernel takes what Ceilings::calls say: a fixed time, and times of its FLOPs and of what it
// moves. A kernel without such times takes its FLOPs or its bytes, whichever bound it when it was measured, over its
// measured rate; one that was not measured at all goes at the mean rate of all. Exchanges take a fixed time, and their
// bytes over the measured rate, without waiting for busier peers. More ranks than were measured at once, which is as
// many as there are cores, take turns. Shampoo's eigenvectors and SOAP's bases take one thread of a rank, at 8 % of its
// multiply-adds (LAPACK's own reference, sides of 128 to 1024), however fast products are.
//
// On GPUs each kind of call takes what Ceilings::speeds says of it (planner/speeds/gpu_speeds.h), and what is beside
// kernels hides behind them (planner/time/rank_time.h). `cluster`: GPUs that need not be here; null: those of the
// ceilings' load.
StepTime predict_step(const Plan& plan, const RunConfig& config, const Ceilings& ceilings,
                      const Cluster* cluster = nullptr);

// The run's steps that are left after `done`, with its evaluations; without checkpoints. `held_out`: samples that the
// held-out text has; nothing where it is not known, and taken to have as many as evaluations want.
double predict_run(const StepTime& step, const RunConfig& config, int64_t done,
                   std::optional<int64_t> held_out = std::nullopt);

}  // namespace witan
