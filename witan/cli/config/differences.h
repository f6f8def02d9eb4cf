// The keys in which configurations differ.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "witan/train/config/config.h"

namespace witan::cli {

struct KeyDifference {
  std::string section, key;
  std::vector<std::string> values;           // of each configuration, as TOML writes them; always the same length
  std::vector<nlohmann::ordered_json> json;  // the same as json_value() has them
};

// In the order of RunConfig::fields(). Names of runs and of their folder are no difference.
std::vector<KeyDifference> differing_keys(std::vector<RunConfig> configs);

}  // namespace witan::cli
