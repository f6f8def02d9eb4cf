// The learning rate as a pure function of the iteration, as Megatron-LM's OptimizerParamScheduler.
#pragma once

#include <cstdint>

#include "witan/optim/config.h"

namespace witan {

// Linear from 0 to lr over lr_warmup_iters, then constant, or down to min_lr at lr_decay_iters (0: train_iters) along a
// line or half a cosine. Megatron-LM prints the value for n beside iteration n, counted from 1. The config is valid.
double learning_rate(const OptimizerConfig& config, int64_t train_iters, int64_t iteration);

}  // namespace witan
