// Keys of a configuration that have no effect in it, since they belong to what another key does not ask for.
#pragma once

#include <string>
#include <vector>

#include "witan/train/config/config.h"

namespace witan {

struct IdleKey {
  std::string key;
  std::string needs;  // what would give it an effect, and what is: "dtype = float16; here dtype = float32"
};

// In the order of RunConfig::fields(). `config` must be valid (RunConfig::validate()), with a device that is chosen.
std::vector<IdleKey> idle_keys(const RunConfig& config);

// Whether gradient_norm_fusion = true would have an effect. A search resolves thousands of layouts and asks it of each,
// where idle_keys() would look at all keys.
bool norm_fusion_applies(const RunConfig& config);

// One sentence for keys that share a reason: "loss_scale = 8 has no effect: it needs dtype = float16; here ...".
// `fields`: of the configuration, for the values of these keys.
std::vector<std::string> describe_idle(const std::vector<IdleKey>& idle, const Fields& fields);

}  // namespace witan
