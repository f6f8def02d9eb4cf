// What a call says of the datasets of a run, before anything is read or tokenized.
#pragma once

#include "witan/train/config/config.h"

namespace witan {

// Throws ConfigError, naming value and way out, for weights that are not those of the datasets, a weight in the place
// of a dataset, and shares of splits that are none. Only of what a call to train says: what a run has begun with is its
// own, wherever its data are now.
void check_datasets(const DataConfig& config);

}  // namespace witan
