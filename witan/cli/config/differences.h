// Values of a configuration as JSON, and the keys in which configurations differ.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "witan/base/config/fields.h"
#include "witan/train/config/config.h"

namespace witan::cli {

// A field's value: true, 7, 0.5 or "text". Lists of paths, numbers and layers are arrays, even with one element; tables
// are objects.
nlohmann::ordered_json json_value(const Field& field);

struct KeyDifference {
  std::string section, key;
  std::vector<std::string> values;           // one for each configuration, as TOML
  std::vector<nlohmann::ordered_json> json;  // the same, from json_value()
};

// The keys that differ, in the order of RunConfig::fields(), except run and runs_folder.
std::vector<KeyDifference> differing_keys(std::vector<RunConfig> configs);

}  // namespace witan::cli
