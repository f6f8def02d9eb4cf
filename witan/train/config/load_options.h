// Options for the checkpoint that a run resumes from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "witan/train/config/config.h"

namespace witan {

// The configuration of the checkpoint whose schedule config.load asks for; nothing where it asks for none, or the run
// has no checkpoint. Throws CheckpointError, ConfigError.
std::optional<RunConfig> scheduling_checkpoint(const RunConfig& config);

// `given` by a call, as config.load changes it: with the schedule of `checkpoint`, if that is asked for. Adds to
// `notes` what has no meaning here and what gives way to the checkpoint.
RunConfig with_load_options(const RunConfig& given, const std::optional<RunConfig>& checkpoint,
                            std::vector<std::string>& notes);

}  // namespace witan
