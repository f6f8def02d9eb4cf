// Verifies before training that all ranks were started with the same settings.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "witan/comm/group.h"

namespace witan {

using Settings = std::vector<std::pair<std::string, std::string>>;  // keys, each once, and values

// How the settings of the ranks, by rank, differ: each key that does, with the values and who has them, the usual one
// first; empty where they do not. "hidden_size = 64 on ranks 0, 1, 3, but 128 on rank 2".
std::string difference(const std::vector<Settings>& settings);

// Throws ConfigError, on all ranks of `world` alike, for settings that differ, naming how. They tell each other a hash,
// and more only when those differ. `stream` is on the CPU.
void require_same_settings(Stream& stream, Group& world, const Settings& own);

}  // namespace witan
