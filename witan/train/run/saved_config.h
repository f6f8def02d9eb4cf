// The configuration that a run was begun with.
#pragma once

#include <optional>

#include "witan/base/file.h"
#include "witan/train/run/config.h"

namespace witan {

// The run's config.toml or, should that be lost or empty, the copy in its newest whole checkpoint; nothing for a run
// that has neither. Throws ConfigError, CheckpointError.
std::optional<RunConfig> saved_config(const fs::path& run_folder);

}  // namespace witan
