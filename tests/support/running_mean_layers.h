// Models some of whose layers have a running mean for attention (support/running_mean.h).
#pragma once

#include <memory>
#include <vector>

#include "support/running_mean.h"
#include "witan/model/config.h"

namespace witan::testing {

// Puts a running mean in place of the attention of these layers.
inline void give_running_means(ModelConfig& config, const std::vector<int64_t>& layers, int64_t channels) {
  for (const int64_t layer : layers) config.mixers[layer] = CustomMixer{std::make_shared<RunningMeanKind>(channels)};
}

}  // namespace witan::testing
