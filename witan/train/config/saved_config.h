// The configuration that a run was started with, and resumes with unless the command line sets other values: where it
// is saved, which keys must not change, and which options take values from the checkpoint.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/checkpoint/store.h"
#include "witan/train/config/config.h"

namespace witan {

// The run's config.toml or, if that is lost or empty, the copy in its newest intact checkpoint; nothing if the run has
// neither. Throws ConfigError, CheckpointError.
std::optional<RunConfig> saved_config(const fs::path& run_folder);

// The copy of the configuration in a checkpoint. Throws ConfigError, CheckpointError, IoError.
RunConfig config_of(const Checkpoint& checkpoint);

// The text of a run's config.toml, without the keys of LoadConfig; `with_help`: with each field's help.
std::string config_to_save(RunConfig config, bool with_help = false);

// The configuration of the checkpoint whose schedule use_checkpoint_opt_param_scheduler asks for; nothing if that is
// not set, or the run has no checkpoint. Throws CheckpointError, ConfigError.
std::optional<RunConfig> scheduling_checkpoint(const RunConfig& config);

// The configuration `given` by a call, with the schedule of `checkpoint` if there is one. Adds to `notes` the options
// that have no effect and the given values that the checkpoint replaces.
RunConfig with_load_options(const RunConfig& given, const std::optional<RunConfig>& checkpoint,
                            std::vector<std::string>& notes);

// Whether a resumed run must keep the value of this field of RunConfig: those of the model, the data, batch sizes and
// the seed. The length of training, learning rates, dropout and the layout may change.
bool is_identity(const Field& field);

// The identity fields that differ, each as "key = now (was before)". Another path to the same files does not count.
std::vector<std::string> changed_identity(RunConfig before, RunConfig now);

}  // namespace witan
