// Which parameters each parameter group of the optimizer takes, for people and programs, before anything runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/train/config/config.h"

namespace witan {

struct ParamGroupUse {
  std::string label;      // ParamGroup's
  std::string optimizer;  // "adam"
  std::string shard_by;   // "elements" or "matrices"
  double lr = 0, min_lr = 0;
  double weight_decay = 0;  // of those of its parameters that decay
  int64_t tensors = 0;      // of the whole model, however ranks hold them; a stack of experts is one
  int64_t parameters = 0;   // elements
};

// Every group in the order in which parameters look for theirs, [optimizer] itself last; nothing where there are no
// groups. The config must be resolved and valid. Throws ConfigError for a group that takes no parameters, which names
// those that there are.
std::vector<ParamGroupUse> use_of_param_groups(const RunConfig& config);

// A line for each.
std::vector<std::string> format_param_groups(const std::vector<ParamGroupUse>& groups);

}  // namespace witan
