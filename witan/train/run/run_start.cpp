#include "witan/train/run/run_start.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "witan/base/error.h"

namespace witan {

RunStart find_start(const RunFolder& folder) {
  RunStart start{folder, {}, {}, {}};
  start.from = latest_checkpoint(folder.checkpoints(), start.warnings);
  if (!start.from && !start.warnings.empty())
    throw CheckpointError(
        fmt::format("{}: no checkpoint is intact: {}. Restore one from a copy, or start over with --fresh",
                    folder.checkpoints().string(), fmt::join(start.warnings, "; ")));
  require<ConfigError>(!start.from || !start.from->scalars.contains(kImported), not_resumable(folder.place()));
  return start;
}

std::string not_resumable(const fs::path& imported) {
  return cat("the run ", imported.string(),
             " was imported: it has weights, but no optimizer state to resume from; start a new run from them: `witan "
             "train --run NEW --init-from ",
             flags_of_run(imported), "`");
}

}  // namespace witan
