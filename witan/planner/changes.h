// In which keys two configurations differ, as flags that make one of the other.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "witan/train/run/config.h"

namespace witan {

using Changes = std::vector<std::pair<std::string, std::string>>;  // key, value as a flag takes it

Changes changed_keys(RunConfig before, RunConfig now);
std::string flags_of(const Changes& changes);  // "--recompute-granularity full --ranks 1"

}  // namespace witan
