#include "witan/train/weights/kept_reference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "witan/base/error.h"
#include "witan/checkpoint/step_folders.h"

namespace witan {

std::optional<Checkpoint> kept_reference(const fs::path& run) {
  const fs::path folder = run / "reference";
  if (step_folders(folder).empty()) return std::nullopt;
  std::vector<std::string> warnings;
  auto found = latest_checkpoint(folder, warnings);
  require<CheckpointError>(found.has_value(), folder.string(), ": the weights of the run's reference are damaged: ",
                           fmt::format("{}", fmt::join(warnings, "; ")), ": restore them from a copy");
  return found;
}

Checkpoint require_kept_reference(const fs::path& run) {
  auto found = kept_reference(run);
  require<CheckpointError>(found.has_value(), (run / "reference").string(),
                           ": there are no weights of a reference, which the run keeps from its first step on: restore "
                           "the folder from a copy or, if the run began without a reference, begin a new one from its "
                           "weights (--run NEW --init-from ",
                           run.filename().string(), ")");
  return *std::move(found);
}

}  // namespace witan
