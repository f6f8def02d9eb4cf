// Why a GPU's step is launched kernel by kernel.
#pragma once

#include <string>

#include "witan/optim/param_groups.h"
#include "witan/parallel/groups.h"
#include "witan/train/config/config.h"

namespace witan {

// In words; empty where a step is one recorded graph. A meta device answers for the one that it stands for.
std::string why_eager(const RunConfig& config, const Groups& groups, const ParamGroups& param_groups);

}  // namespace witan
