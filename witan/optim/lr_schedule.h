// The learning rate as a pure function of the iteration, as Megatron-LM's OptimizerParamScheduler
// (megatron/core/optimizer_param_scheduler.py).
#pragma once

#include <cstdint>

#include "witan/optim/config.h"

namespace witan {

// Linear from 0 to lr over lr_warmup_iters. Then, by lr_decay_style, with an end at lr_decay_iters (0: train_iters),
// behind which it is min_lr:
//   constant              lr, which has no end
//   linear, cosine        down to min_lr along a line, or half a cosine
//   inverse-square-root   lr sqrt(lr_warmup_iters / iteration), but never below min_lr
//   WSD                   lr, and over the last lr_wsd_decay_iters before the end down to min_lr by
//                         lr_wsd_decay_style (warmup, stable, decay: Hu et al., 2024, arXiv:2404.06395)
// Megatron-LM prints the value for n beside iteration n, counted from 1. The config is valid.
double learning_rate(const OptimizerConfig& config, int64_t train_iters, int64_t iteration);

}  // namespace witan
