// Finds checkpoints by name: a run for its newest one, "RUN@best" and "RUN@300".
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/checkpoint/store.h"

namespace witan {

// "mine@300" is the checkpoint 300 of the run "mine". Without an @, or if a run has the whole name, `checkpoint` is
// empty.
struct RunName {
  std::string run, checkpoint;
};
// Throws UsageError if the name could be that of a run as well as that of another run's checkpoint.
RunName parse_run_name(const fs::path& runs_folder, const std::string& name);

// The checkpoint of a step in a run's folder of checkpoints or, for "best", the one with the lowest validation loss.
// Throws CheckpointError, listing the existing ones.
Checkpoint find_checkpoint(const fs::path& checkpoints, const std::string& which);

// The validation loss of the weights, in nats per token; infinite if they were not evaluated.
double validation_loss(const Checkpoint& checkpoint);

// A warning if the run had a lower validation loss than `taken`, its "best" checkpoint, at a step that was not saved.
std::optional<std::string> lost_best(const Checkpoint& taken);
// Warns in this way for a name RUN@best; nothing for other names.
std::optional<std::string> lost_best_of_name(const std::string& where, const fs::path& runs_folder);

// Opens a checkpoint's folder, or the newest intact checkpoint of a run's folder; nothing if `path` is neither.
// `asked`, such as "init_from = X: ", begins messages. Adds a sentence to `warnings` for every damaged checkpoint that
// is skipped. Throws CheckpointError if none is intact.
std::optional<Checkpoint> checkpoint_in(const fs::path& path, const std::string& asked,
                                        std::vector<std::string>& warnings);

// Opens "RUN@best" or "RUN@300", where RUN is a run's folder or its name in `runs_folder`; nothing for other names.
// Throws as parse_run_name() and find_checkpoint() do.
std::optional<Checkpoint> checkpoint_of_name(const std::string& where, const fs::path& runs_folder);

// Opens the checkpoint that `where` names in any of these ways, or by the name of a run in `runs_folder`; nothing if
// there is none. `asked` and `warnings` as above.
std::optional<Checkpoint> find_named(const std::string& where, const fs::path& runs_folder, const std::string& asked,
                                     std::vector<std::string>& warnings);

// The folder that `where` names: a path, or the folder of a run, whose name may be followed by @CHECKPOINT.
fs::path folder_of_weights(const std::string& where, const fs::path& runs_folder);

}  // namespace witan
