// What a call says of the checkpoint that a run goes on from.
#pragma once

#include <optional>

#include "witan/report/progress.h"
#include "witan/train/run/config.h"

namespace witan {

// The schedules of learning rate and weight decay become those that `saved`, a checkpoint's configuration, trained
// with: lr, min_lr, lr_decay_style, lr_warmup_iters, lr_decay_iters, weight_decay.
void take_schedule(RunConfig& config, const RunConfig& saved);

// lr_decay_iters = 0, "as long as the run", is fixed to the length of the run that `saved` was of.
void fix_length(RunConfig& config, const RunConfig& saved);

// Carries out config.load as far as it is about the configuration, and says on `progress` what has no meaning here and
// what gives way to the checkpoint. Returns the checkpoint's configuration if its schedule was taken. Where the run has
// no checkpoint, nothing changes. Throws CheckpointError, ConfigError.
std::optional<RunConfig> apply_load_options(RunConfig& config, Progress& progress);

}  // namespace witan
