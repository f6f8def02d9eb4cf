// Verifies before training that all ranks were started with the same settings.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/comm/group.h"

namespace witan {

using Settings = std::vector<std::pair<std::string, std::string>>;  // keys, each once, and values

// How the settings of the ranks, by rank, differ: each key that does, with the values and who has them, the usual one
// first; empty where they do not. "hidden_size = 64 on ranks 0, 1, 3, but 128 on rank 2".
std::string difference(const std::vector<Settings>& settings);

// The settings of the ranks differ. It is the error of every rank, whichever of them finds it first.
class SettingsDifferError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

// Throws SettingsDifferError for settings that differ, naming how; a rank that learns of it from another rank's failure
// throws a ConfigError of the same words. The ranks exchange a hash, and the settings only when those differ. `stream`
// is on the CPU.
void require_same_settings(Stream& stream, Group& world, const Settings& own);

}  // namespace witan
