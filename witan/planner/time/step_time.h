// Predicts the time of a step: the work that the plan counted over the measured speeds of the machine.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "witan/planner/plan.h"
#include "witan/planner/speeds/ceilings.h"
#include "witan/planner/speeds/cluster.h"

namespace witan {

struct StepTime {
  double seconds = 0;  // seconds per step
  std::map<std::string, double>
      parts;                // seconds per step, by part of the model; "exchange": communication between ranks
  double eval_seconds = 0;  // seconds to evaluate one micro-batch on every rank
};

// The step time of the slowest rank, with balanced experts. Pipelines are simulated with their schedule and the times
// of each stage's passes (planner/time/rank_time.h); "bubble" is then the time that the slowest stage waits.
//
// On a CPU a kernel call takes what Ceilings::calls say: a fixed time, plus times for its FLOPs and for what it moves.
// A kernel without such speeds takes its FLOPs or its bytes over its measured rate, whichever bound it when it was
// measured; one that was not measured at all runs at the mean rate of all. Exchanges take a fixed time plus their bytes
// over the measured rate, without waiting for busier peers. If there are more ranks than were measured at once, which
// are as many as there are cores, they take turns. Shampoo's eigenvectors and SOAP's bases run on one thread of a rank
// at 8 % of its multiply-adds (LAPACK's reference implementation, sides of 128 to 1024), however fast products are.
//
// On GPUs each kind of call takes the time that Ceilings::speeds gives (planner/speeds/gpu_speeds.h), and overlapped
// exchanges hide behind kernels (planner/time/rank_time.h). `cluster`: GPUs that need not be in this machine; nullptr:
// the GPUs of the ceilings' load.
StepTime predict_step(const Plan& plan, const RunConfig& config, const Ceilings& ceilings,
                      const Cluster* cluster = nullptr);

// Seconds of the steps that remain after `done`, with their evaluations but without checkpoints. `held_out`: samples of
// the validation split; nullopt: assumed to be as many as evaluations want.
double predict_run(const StepTime& step, const RunConfig& config, int64_t done,
                   std::optional<int64_t> held_out = std::nullopt);

}  // namespace witan
