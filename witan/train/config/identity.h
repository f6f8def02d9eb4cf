// Lists the configuration keys that identify a run, and must not change when it is resumed.
#pragma once

#include <string>
#include <vector>

#include "witan/train/config/config.h"

namespace witan {

// Whether a resumed run must keep what the field, one of RunConfig's, says: model, data, batch sizes and seed. How long
// it trains, how fast it learns, how much it drops and how it is laid out may change.
bool is_identity(const Field& field);

// Such keys in which the two differ, each as "key = now (was before)"; another path to the same files is no difference.
std::vector<std::string> changed_identity(RunConfig before, RunConfig now);

}  // namespace witan
