// Checkpoints by the names that people give them: a run's newest, "RUN@best" and "RUN@300".
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/checkpoint/store.h"

namespace witan {

// "mine@300" as the run's name and what stands behind the sign; of a name that a run has, or without one, nothing does.
struct RunName {
  std::string run, checkpoint;
};
// Throws UsageError where both a run of that name and the checkpoint of another run are there.
RunName parse_run_name(const fs::path& runs_folder, const std::string& name);

// Of a run's folder of checkpoints that of a step, or with "best" the one of lowest validation loss among those that
// were evaluated. Throws CheckpointError, naming those that there are.
Checkpoint find_checkpoint(const fs::path& checkpoints, const std::string& which);

// What an evaluation of its weights found, nats per token; infinite where there was none.
double validation_loss(const Checkpoint& checkpoint);

// Warns where the run had a lower validation loss than `taken`, which "best" names, at a step that has no checkpoint.
std::optional<std::string> lost_best(const Checkpoint& taken);
// Warns likewise where `where` is a name RUN@best that checkpoint_of_name() takes.
std::optional<std::string> lost_best_of_name(const std::string& where, const fs::path& runs_folder);

// The folder of a checkpoint, or the newest intact one of a run's; nothing where `path` is neither. `asked`, "init_from
// = X: " or so, begins messages. Adds a sentence to `warnings` for every damaged checkpoint that is skipped. Throws
// CheckpointError where none is intact.
std::optional<Checkpoint> checkpoint_in(const fs::path& path, const std::string& asked,
                                        std::vector<std::string>& warnings);

// Of "RUN@best" or "RUN@300", where RUN is a run's folder or its name in `runs_folder`; nothing for what is no such
// name. Throws as parse_run_name() and find_checkpoint() do.
std::optional<Checkpoint> checkpoint_of_name(const std::string& where, const fs::path& runs_folder);

// The folder that `where` names, with or without a checkpoint behind it: itself, or that of a run.
fs::path folder_of_weights(const std::string& where, const fs::path& runs_folder);

}  // namespace witan
