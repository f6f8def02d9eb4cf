#include "witan/train/run/named_checkpoint.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/train/run/validation_record.h"

namespace witan {
namespace {

Checkpoint best_checkpoint(const fs::path& checkpoints) {
  std::optional<Checkpoint> best;
  const auto loss_of = [](const Checkpoint& one) { return one.scalars.value(kValidationLoss, INFINITY); };
  for (const auto& [step, path] : step_folders(checkpoints)) {
    Checkpoint one = open_checkpoint(path);
    if (loss_of(one) < (best ? loss_of(*best) : INFINITY)) best = std::move(one);
  }
  require<CheckpointError>(best.has_value(), checkpoints.string(),
                           " has no checkpoint with a validation loss: runs save them with --keep-best N, or where "
                           "eval_interval divides save_interval");
  return *best;
}

}  // namespace

RunName parse_run_name(const fs::path& runs_folder, const std::string& name) {
  const size_t sign = name.rfind('@');
  if (sign == std::string::npos) return {name, ""};
  std::error_code none;
  const auto is_run = [&](const std::string& one) {
    return !one.empty() && fs::exists(runs_folder / one / "config.toml", none);
  };
  const std::string before = name.substr(0, sign);
  if (!is_run(name)) return {before, name.substr(sign + 1)};
  require<UsageError>(!is_run(before), clipped(name), " is a run in ", runs_folder.string(),
                      ", and a checkpoint of the run ", clipped(before), ": give one of the first as ", clipped(name),
                      "@best or ", clipped(name), "@STEP, or rename its folder");
  return {name, ""};
}

Checkpoint find_checkpoint(const fs::path& checkpoints, const std::string& which) {
  if (which == "best") return best_checkpoint(checkpoints);
  std::string steps;
  for (const auto& [step, path] : step_folders(checkpoints)) {
    if (which == std::to_string(step)) return open_checkpoint(path);
    steps += (steps.empty() ? "" : ", ") + std::to_string(step);
  }
  throw CheckpointError(cat(checkpoints.string(), " has no checkpoint ", clipped(which),
                            ": give @best or a step; it has ", steps.empty() ? "none" : steps));
}

std::optional<Checkpoint> checkpoint_in(const fs::path& path, const std::string& asked) {
  std::error_code error;
  if (fs::exists(path / kManifestName, error)) return open_checkpoint(path);
  if (!fs::exists(path / "checkpoints", error)) return std::nullopt;
  std::vector<std::string> warnings;
  auto newest = latest_checkpoint(path / "checkpoints", warnings);
  require<CheckpointError>(newest.has_value(), asked, path.string(), " has no intact checkpoint",
                           warnings.empty() ? "" : ": " + warnings.front());
  return newest;
}

std::optional<Checkpoint> checkpoint_of_name(const std::string& where, const fs::path& runs_folder) {
  std::error_code error;
  if (where.find('@') == std::string::npos || fs::exists(where, error)) return std::nullopt;
  const RunName named = parse_run_name(runs_folder, where);
  if (named.checkpoint.empty()) return std::nullopt;
  for (const fs::path& run : {fs::path(named.run), runs_folder / named.run})
    if (fs::exists(run / "checkpoints", error)) return find_checkpoint(run / "checkpoints", named.checkpoint);
  return std::nullopt;
}

fs::path folder_of_weights(const std::string& where, const fs::path& runs_folder) {
  std::error_code error;
  for (const fs::path& path : {fs::path(where), runs_folder / where})
    if (fs::is_directory(path, error)) return path;
  const std::string run = where.substr(0, where.rfind('@'));
  if (fs::exists(fs::path(run) / "checkpoints", error)) return run;
  return runs_folder / run;
}

}  // namespace witan
