// Parts of RunConfig::validate(), which throw ConfigError where objectives or sampled batches rule out other keys.
#pragma once

#include "witan/train/config/config.h"

namespace witan {

void validate_objective(const RunConfig& config);
void validate_rollouts(const RunConfig& config);

}  // namespace witan
