// How long a step will take: what the plan counted, over what the machine was measured to do.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "witan/planner/ceilings.h"
#include "witan/planner/cluster.h"
#include "witan/planner/plan.h"

namespace witan {

struct StepTime {
  double seconds = 0;                   // of one step
  std::map<std::string, double> parts;  // of it, by part of the model; "exchange": between ranks
  double eval_seconds = 0;              // of evaluating one micro-batch on every rank
};

// Of the rank that takes longest, with an even load of the experts. A kernel takes its FLOPs or its bytes, whichever
// bound it when it was measured, over its measured rate; one that was not measured goes at the mean rate of all.
// Exchanges take their bytes over the measured rate, without waiting for peers; of a pipeline's stages the bubble says
// how long they wait. More ranks than were measured at once, which is as many as there are cores, take turns.
//
// The work of Shampoo and SOAP is unlike all others. Their products are of float32 at least, which GPUs compute at
// f32_flops; and the QR decompositions and eigenvectors that a CPU has of LAPACK take one thread of a rank, at 8 % of
// its multiply-adds (LAPACK's own reference, sides of 128 to 1024), however fast products are.
//
// On a cluster that is not here kernels reach 0.8 of the ceilings, each block's passes of a micro-batch cost 0.1 ms of
// launches and tails besides, and exchanges take what LinkClock says. Reductions of gradients hide behind the backward
// of the last micro-batch, or of all where gradients are divided, and gathers of divided parameters behind all
// kernels, unless overlap_grad_reduce or overlap_param_gather is off; all other exchanges are waited for.
StepTime predict_step(const Plan& plan, const RunConfig& config, const Ceilings& ceilings,
                      const Cluster* cluster = nullptr);

// Of a step on the CPU, what LAPACK takes of it on the rank that has most to do: what whoever divides the work of a
// step by its peak has to add.
double lapack_seconds(const Plan& plan, const RunConfig& config, const Ceilings& ceilings);

// The run's steps that are left after `done`, with its evaluations; without checkpoints. `held_out`: samples that the
// held-out text has; nothing where it is not known, and taken to have as many as evaluations want.
double predict_run(const StepTime& step, const RunConfig& config, int64_t done,
                   std::optional<int64_t> held_out = std::nullopt);

}  // namespace witan
