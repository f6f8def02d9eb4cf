// Prints a plan as a page for people, and as JSON for programs.
#pragma once

#include <optional>
#include <string>

#include "witan/planner/plan.h"
#include "witan/planner/time/step_time.h"
#include "witan/train/run/config.h"

namespace witan {

// Predicted times, and the ceilings they are based on.
struct Timing {
  StepTime step;
  double run_seconds = 0;  // of `steps` steps and the evaluations between them
  int64_t steps = 0;
  Ceilings ceilings;
  std::string source;  // where the ceilings come from: "measured now", "saved in FILE"
};

// Parameters, FLOPs by part, memory by tag and rank beside what is usable, disk, stages, bytes sent, time. `usable`:
// bytes of memory; 0: unknown.
std::string format_plan(const Plan& plan, int64_t usable, const std::optional<Timing>& timing);

// That a plan counts with so many entries of a vocabulary that is not there: a sentence, without its end.
std::string format_assumption(int64_t vocabulary);

// What a step on GPUs is, and how rows of divided experts travel, each as the end of a sentence.
std::string format_capture(const Plan& plan);
std::string format_exchange(const Plan& plan);

// A line for each stage of a pipeline: which layers it has.
std::string format_stages(const std::vector<StageLayers>& stages);

// The memory section alone.
std::string format_memory(const Plan& plan, int64_t usable);

// One object: tokens_per_step, where the global batch grows a sentence `ramp`, parameters {exact, active, experts},
// where there is one assumed_vocabulary, with parameter groups param_groups [{group, parameters, tensors, optimizer,
// lr, min_lr, weight_decay, shard_by}], step_flops, bubble, ranks [{rank, ranks: all that it stands for, exact,
// arena_bytes, tags, parts, sent}], reserve_bytes, resident_bytes, needed_bytes, checkpoint_bytes, anomaly_bytes,
// disk_bytes, usable_bytes, fits; on GPUs gpu {recorded, why_eager, exchange}; where it was asked for,
// balanced_activation_bytes; and, where there is a timing, step_seconds and run_seconds.
std::string plan_json(const Plan& plan, int64_t usable, const std::optional<Timing>& timing);

// Weights, gradients and optimizer state of one rank by Megatron-LM's formula (model/megatron_formulas.h), as lines for
// people: over all parameters, as it prints them, and with experts divided over their ranks; with its distributed
// optimizer and without. Nothing where ranks divide the model otherwise. The config must be resolved.
std::string format_megatron_memory(const RunConfig& config);

}  // namespace witan
