// The weights that a run on disk was begun from, which no later call changes.
#pragma once

#include "witan/cli/args/run_config.h"

namespace witan::cli {

// Of a call that is taken as the run's: a run that has saved has its first weights behind it, and to ask for others
// (init_from, upcycle) would change no more than what config.toml says of where they came from. A file that leaves them
// out asks for nothing. Throws ConfigError.
void keep_first_weights(GivenConfig& given);

// Of a call with --fresh: throws ConfigError where the first weights are to be those of the run that it archives, which
// would have moved before they are read.
void require_other_source(const GivenConfig& given);

}  // namespace witan::cli
