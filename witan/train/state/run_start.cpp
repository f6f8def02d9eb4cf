#include "witan/train/state/run_start.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "witan/base/error.h"
#include "witan/report/events/metrics.h"
#include "witan/train/state/named_checkpoint.h"

namespace witan {
namespace {

// Detects a link to a disk that is not mounted before any work, instead of when the first checkpoint is written.
void require_folder_or_none(const fs::path& checkpoints) {
  std::error_code error;
  const fs::file_status itself = fs::symlink_status(checkpoints, error);
  if (!fs::exists(itself) || fs::is_directory(checkpoints, error)) return;
  const bool link = fs::is_symlink(itself);
  throw CheckpointError(cat(checkpoints.string(), " is ", link ? "a link" : "a file",
                            link ? cat(" to ", fs::read_symlink(checkpoints, error).string()) : "",
                            link ? ", where no folder is: mount the disk that it is on, or remove the link"
                                 : ", where checkpoints are to be: remove it"));
}

}  // namespace

std::optional<std::string> lost_checkpoints(const fs::path& run) {
  const fs::path metrics = run / "metrics.jsonl";
  std::error_code none;
  const auto saved = fs::exists(metrics, none) ? read_last_save(metrics) : std::nullopt;
  if (!saved) return std::nullopt;
  return cat(run.string(), ": metrics.jsonl says that the checkpoint of step ", saved->step,
             " was saved, but there is none in checkpoints. Restore one from a copy, or start over with --fresh");
}

Checkpoint find_branched(const TrainConfig& train, std::vector<std::string>& warnings) {
  const std::string asked = cat("init_from = ", train.init_from, ": ");
  std::optional<Checkpoint> from = find_named(train.init_from, train.runs_folder, asked, warnings);
  require<ConfigError>(from && !from->scalars.contains(kImported), asked,
                       "init_state = training continues from a run's checkpoint, which has optimizer state; ",
                       from ? "this run was imported, and has weights alone" : "there is none of that name",
                       ". Take only the weights with init_state = weights");
  require<ConfigError>(from->step < train.train_iters, asked, from->folder.string(), " has done ", from->step,
                       " steps, and train_iters = ", train.train_iters, " leaves none: set a larger train_iters");
  return std::move(*from);
}

RunStart find_start(const RunFolder& folder, const TrainConfig& train) {
  RunStart start{folder, {}, {}, {}};
  require_folder_or_none(folder.checkpoints());
  start.from = latest_checkpoint(folder.checkpoints(), start.warnings);
  if (!start.from && !start.warnings.empty())
    throw CheckpointError(
        fmt::format("{}: no checkpoint is intact: {}. Restore one from a copy, or start over with --fresh",
                    folder.checkpoints().string(), fmt::join(start.warnings, "; ")));
  if (!start.from)
    if (const auto lost = lost_checkpoints(folder.path())) throw CheckpointError(*lost);
  require<ConfigError>(!start.from || !start.from->scalars.contains(kImported), not_resumable(folder.place()));
  start.branches = !start.from && train.branches();
  if (start.branches) start.from = find_branched(train, start.warnings);
  return start;
}

std::string not_resumable(const fs::path& imported) {
  return cat("the run ", imported.string(),
             " was imported: it has weights, but no optimizer state to resume from; start a new run from them: `witan "
             "train --run NEW --init-from ",
             flags_of_run(imported), "`");
}

}  // namespace witan
