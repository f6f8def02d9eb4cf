// The keys in which two configurations differ, as flags that turn one into the other.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "witan/train/run/config.h"

namespace witan {

using Changes = std::vector<std::pair<std::string, std::string>>;  // key, value in the syntax of a flag

Changes changed_keys(RunConfig before, RunConfig now);
std::string flags_of(const Changes& changes);  // "--recompute-granularity full --ranks 1"

}  // namespace witan
