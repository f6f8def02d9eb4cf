// Keys that have no effect in a configuration, since they belong to a feature that another key leaves off.
#pragma once

#include <string>
#include <vector>

#include "witan/train/config/config.h"

namespace witan {

struct IdleKey {
  std::string key;
  std::string
      needs;  // the value that would give it an effect, and the actual one: "dtype = float16; here dtype = float32"
};

// In the order of RunConfig::fields(). `config` must be valid (RunConfig::validate()), with a device that is chosen.
std::vector<IdleKey> idle_keys(const RunConfig& config);

// Whether gradient_norm_fusion = true would have an effect. A search asks this for thousands of layouts, for which
// idle_keys() would check all keys.
bool norm_fusion_applies(const RunConfig& config);

// One sentence for keys that share a reason: "loss_scale = 8 has no effect: it needs dtype = float16; here ...".
// `fields`: the configuration's fields, for the values of these keys.
std::vector<std::string> describe_idle(const std::vector<IdleKey>& idle, const Fields& fields);

}  // namespace witan
