// Learning rate and weight decay as pure functions of a position in their schedule, like Megatron-LM's
// OptimizerParamScheduler (megatron/core/optimizer_param_scheduler.py).
#pragma once

#include <cstdint>

#include "witan/optim/config.h"

namespace witan {

// The position, in a schedule of iterations, of an iteration (from 1 on) before which `updates` updates were made: by
// lr_schedule_counter the iteration itself or, as in Megatron-LM, the number of updates. Megatron-LM's optimizer steps
// before its scheduler, so that the first update uses position 0, and its scheduler does not advance when an update is
// skipped. After an update it prints the value for the new number of updates, which the next update will use. In a
// schedule of samples (OptimizerConfig::counts_samples()) the position is the number of samples of the updates made
// before, as in Megatron-LM.
int64_t schedule_position(const OptimizerConfig& config, int64_t iteration, int64_t updates);

// Rises linearly from lr_warmup_init to lr over lr_warmup_iters, then follows lr_decay_style until lr_decay_iters (0:
// `length`, the run's), after which it is min_lr. Schedules of samples use lr_warmup_samples and so on instead.
//   constant              lr, which has no end
//   linear, cosine        down to min_lr along a line, or half a cosine
//   inverse-square-root   lr sqrt(lr_warmup_iters / position), but never below min_lr
//   WSD                   lr, and over the last lr_wsd_decay_iters before the end down to min_lr by
//                         lr_wsd_decay_style (warmup, stable, decay: Hu et al., 2024, arXiv:2404.06395)
// The config is valid.
double learning_rate(const OptimizerConfig& config, int64_t length, int64_t position);

// The weight decay that parameter groups are built with: the larger of start_weight_decay and weight_decay if
// weight_decay_incr_style is not constant. weight_decay_share() is the share of it, 0 … 1, at a position: it leads from
// start_weight_decay to weight_decay at `length`, the run's, along a line or half a cosine.
double largest_weight_decay(const OptimizerConfig& config);
double weight_decay_share(const OptimizerConfig& config, int64_t length, int64_t position);

}  // namespace witan
