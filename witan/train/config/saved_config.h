// The configuration that a run was started with, which it resumes with unless the command line sets other values: where
// it is saved, which keys must not change, and which options take values from the checkpoint.
#pragma once

#include <optional>
#include <string>
#include <vector>

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

// The configuration of the checkpoint whose schedule config.load asks for; nothing where it asks for none, or the run
// has no checkpoint. Throws CheckpointError, ConfigError.
std::optional<RunConfig> scheduling_checkpoint(const RunConfig& config);

// `given` by a call, as config.load changes it: with the schedule of `checkpoint`, if that is asked for. Adds to
// `notes` what has no meaning here and what gives way to the checkpoint.
RunConfig with_load_options(const RunConfig& given, const std::optional<RunConfig>& checkpoint,
                            std::vector<std::string>& notes);

// Whether a resumed run must keep what the field, one of RunConfig's, says: model, data, batch sizes and seed. How long
// it trains, how fast it learns, how much it drops and how it is laid out may change.
bool is_identity(const Field& field);

// Such keys in which the two differ, each as "key = now (was before)"; another path to the same files is no difference.
std::vector<std::string> changed_identity(RunConfig before, RunConfig now);

}  // namespace witan
