// The configuration that a run was started with, which it resumes with unless the command line sets other values.
#pragma once

#include <optional>
#include <string>

#include "witan/base/files/file.h"
#include "witan/checkpoint/store.h"
#include "witan/train/config/config.h"

namespace witan {

// The run's config.toml or, should that be lost or empty, the copy in its newest whole checkpoint; nothing for a run
// that has neither. Throws ConfigError, CheckpointError.
std::optional<RunConfig> saved_config(const fs::path& run_folder);

// The copy in a checkpoint. Throws ConfigError, CheckpointError, IoError.
RunConfig config_of(const Checkpoint& checkpoint);

// The text of a run's config.toml: all but how this call loads a checkpoint, with each field's help if asked for.
std::string config_to_save(RunConfig config, bool with_help = false);

}  // namespace witan
