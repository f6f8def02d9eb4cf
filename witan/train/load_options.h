// What a call says of the checkpoint that a run goes on from.
#pragma once

#include "witan/report/progress.h"
#include "witan/train/config.h"

namespace witan {

// The schedules of learning rate and weight decay become those that `saved`, a checkpoint's configuration, trained
// with: lr, min_lr, lr_decay_style, lr_warmup_iters, lr_decay_iters, weight_decay.
void take_schedule(RunConfig& config, const RunConfig& saved);

// Carries out config.load as far as it is about the configuration, and says on `progress` what has no meaning here.
// Where the run has no checkpoint, nothing changes. Throws CheckpointError, ConfigError.
void apply_load_options(RunConfig& config, Progress& progress);

}  // namespace witan
