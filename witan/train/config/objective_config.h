// What objectives and sampled batches demand of a run's other keys: parts of RunConfig::validate(). Throw ConfigError.
#pragma once

#include "witan/train/config/config.h"

namespace witan {

void validate_objective(const RunConfig& config);
void validate_rollouts(const RunConfig& config);

}  // namespace witan
