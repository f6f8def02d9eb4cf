// Learning rate and weight decay as pure functions of a position in their schedule, as Megatron-LM's
// OptimizerParamScheduler (megatron/core/optimizer_param_scheduler.py).
#pragma once

#include <cstdint>

#include "witan/optim/config.h"

namespace witan {

// The position of a schedule of iterations: for an iteration, counted from 1, before which so many updates were made:
// by lr_schedule_counter the iteration itself or, as with Megatron-LM, the updates. Its optimizer steps before its
// scheduler does, so that the first update uses position 0, and its scheduler stands still where an update is skipped.
// After an update it prints the value at the new number of updates, which the next one will use. The position of a
// schedule of samples (OptimizerConfig::counts_samples()) is the samples of the updates made before, as in Megatron-LM.
int64_t schedule_position(const OptimizerConfig& config, int64_t iteration, int64_t updates);

// Linear from lr_warmup_init to lr over lr_warmup_iters. Then, by lr_decay_style, with an end at lr_decay_iters (0:
// `length`, the run's), behind which it is min_lr. Schedules of samples have lr_warmup_samples and so on instead:
//   constant              lr, which has no end
//   linear, cosine        down to min_lr along a line, or half a cosine
//   inverse-square-root   lr sqrt(lr_warmup_iters / position), but never below min_lr
//   WSD                   lr, and over the last lr_wsd_decay_iters before the end down to min_lr by
//                         lr_wsd_decay_style (warmup, stable, decay: Hu et al., 2024, arXiv:2404.06395)
// The config is valid.
double learning_rate(const OptimizerConfig& config, int64_t length, int64_t position);

// The larger of start_weight_decay and weight_decay, where the two differ by weight_decay_incr_style: what parameters
// are said to decay by; and the share of it, 0 … 1, at a position. From start_weight_decay to weight_decay, which is
// reached at `length`, the run's, along a line or half a cosine.
double largest_weight_decay(const OptimizerConfig& config);
double weight_decay_share(const OptimizerConfig& config, int64_t length, int64_t position);

}  // namespace witan
