// The conditions under which keys have an effect, by the parts of a run; idle_keys() finds those that have none.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "witan/train/config/config.h"

namespace witan {

// The condition under which keys have an effect. Keys without a KeyUse always have one; with several, all must apply.
struct KeyUse {
  std::vector<std::string_view> keys;
  std::string_view needs;  // in a message: "it needs NEEDS; here BY = its value"
  std::string_view by;     // the key that decides; empty: the message ends with NEEDS
  std::function<bool(const RunConfig&)> applies;
};

std::vector<KeyUse> model_key_uses();   // of all layers
std::vector<KeyUse> expert_key_uses();  // of a model with experts; a dense model has one reason for all of them
std::vector<KeyUse> run_key_uses();     // of data, objective, optimizer and layout

// Why gradient_norm_fusion = true would have no effect: the requirements of GradientBuckets on gradients that keep sums
// of blocks, and of Experts on the products that fill them.
std::vector<KeyUse> norm_fusion_uses();

}  // namespace witan
