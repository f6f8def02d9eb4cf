// Values of a configuration as JSON, and the keys in which configurations differ.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "witan/base/config/fields.h"
#include "witan/train/run/config.h"

namespace witan::cli {

// true, 7, 0.5, "text"; lists of paths, of numbers and of layers as arrays, also those of one path; tables as objects.
nlohmann::ordered_json json_value(const Field& field);

struct KeyDifference {
  std::string section, key;
  std::vector<std::string> values;           // of each configuration, as TOML writes them; always the same length
  std::vector<nlohmann::ordered_json> json;  // the same as json_value() has them
};

// In the order of RunConfig::fields(). Names of runs and of their folder are no difference.
std::vector<KeyDifference> differing_keys(std::vector<RunConfig> configs);

}  // namespace witan::cli
