// Formats a plan as a page for people and as JSON for programs.
#pragma once

#include <optional>
#include <string>

#include "witan/planner/plan.h"
#include "witan/planner/time/step_time.h"
#include "witan/train/config/config.h"

namespace witan {

// Predicted times, and the ceilings on which they are based.
struct Timing {
  StepTime step;
  double run_seconds = 0;  // of `steps` steps and their evaluations
  int64_t steps = 0;
  Ceilings ceilings;
  std::string source;  // the source of the ceilings: "measured now", "saved in FILE"
};

// The whole page: parameters, FLOPs by part, memory by tag and rank beside the usable memory, disk, stages, bytes sent,
// time. `usable`: bytes of memory; 0: unknown.
std::string format_plan(const Plan& plan, int64_t usable, const std::optional<Timing>& timing);

// A sentence, without its period, that states the assumed vocabulary size.
std::string format_assumption(int64_t vocabulary);

// How a step on GPUs is launched, and how tokens for experts travel, each as the end of a sentence.
std::string format_capture(const Plan& plan);
std::string format_exchange(const Plan& plan);

// One line for each pipeline stage, with its layers.
std::string format_stages(const std::vector<StageLayers>& stages);

// The memory section alone.
std::string format_memory(const Plan& plan, int64_t usable);

// One object: tokens_per_step, with a batch size ramp a sentence `ramp`, parameters {exact, active, experts},
// assumed_vocabulary if there is one, with parameter groups param_groups [{group, parameters, tensors, optimizer, lr,
// min_lr, weight_decay, shard_by}], step_flops, bubble, ranks [{rank, ranks: all of its class, exact, arena_bytes,
// tags, parts, sent}], reserve_bytes, resident_bytes, needed_bytes, checkpoint_bytes, anomaly_bytes, rollout_bytes,
// rollout_files, disk_bytes, usable_bytes, fits; on GPUs gpu {recorded, why_eager, exchange}; if asked for,
// balanced_activation_bytes; and with a timing step_seconds and run_seconds.
std::string plan_json(const Plan& plan, int64_t usable, const std::optional<Timing>& timing);

// Weights, gradients and optimizer state of one rank by Megatron-LM's formula (model/counts.h), which its
// users know from its log, as lines for people: over all parameters, as Megatron-LM prints them, and with experts
// sharded over their ranks; with its distributed optimizer and without. Empty if the model is divided in other ways.
// The config must be resolved.
std::string format_megatron_memory(const RunConfig& config);

}  // namespace witan
