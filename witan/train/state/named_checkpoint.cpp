#include "witan/train/state/named_checkpoint.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/train/state/train_state.h"

namespace witan {
namespace {

constexpr std::string_view kBest = "best";

Checkpoint best_checkpoint(const fs::path& checkpoints) {
  std::optional<Checkpoint> best;
  for (const auto& [step, path] : step_folders(checkpoints)) {
    Checkpoint one = open_checkpoint(path);
    if (validation_loss(one) < (best ? validation_loss(*best) : INFINITY)) best = std::move(one);
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
  if (which == kBest) return best_checkpoint(checkpoints);
  std::string steps;
  for (const auto& [step, path] : step_folders(checkpoints)) {
    if (which == std::to_string(step)) return open_checkpoint(path);
    steps += (steps.empty() ? "" : ", ") + std::to_string(step);
  }
  throw CheckpointError(cat(checkpoints.string(), " has no checkpoint ", clipped(which),
                            ": give @best or a step; it has ", steps.empty() ? "none" : steps));
}

double validation_loss(const Checkpoint& checkpoint) {
  return checkpoint.scalars.value(kValidationLoss, static_cast<double>(INFINITY));
}

std::optional<std::string> lost_best(const Checkpoint& taken) {
  const fs::path checkpoints = taken.folder.parent_path();
  const Checkpoint newest = open_checkpoint(step_folders(checkpoints).front().second);
  const ValidationRecord found = ValidationRecord::from_json(newest.scalars);
  const bool kept = found.best_step == 0 || fs::exists(checkpoints / step_folder_name(found.best_step));
  if (kept || found.best >= validation_loss(taken)) return std::nullopt;
  return fmt::format(
      "the best validation loss was {:.4f} at step {}, whose weights were not kept; those of step {} are taken, with "
      "{:.4f}. A run keeps the best with keep_best = 1, if save_interval saves at every evaluation",
      found.best, found.best_step, taken.step, validation_loss(taken));
}

std::optional<std::string> lost_best_of_name(const std::string& where, const fs::path& runs_folder) {
  if (!where.ends_with(cat("@", kBest))) return std::nullopt;
  const auto taken = checkpoint_of_name(where, runs_folder);
  return taken ? lost_best(*taken) : std::nullopt;
}

std::optional<Checkpoint> checkpoint_in(const fs::path& path, const std::string& asked,
                                        std::vector<std::string>& warnings) {
  std::error_code error;
  if (fs::exists(path / kManifestName, error)) return open_checkpoint(path);
  if (!fs::exists(path / "checkpoints", error)) return std::nullopt;
  std::vector<std::string> damaged;
  auto newest = latest_checkpoint(path / "checkpoints", damaged);
  require<CheckpointError>(newest.has_value(), asked, path.string(), " has no intact checkpoint",
                           damaged.empty() ? "" : ": " + damaged.front());
  for (const std::string& one : damaged) warnings.push_back(cat(asked, one));
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

std::optional<Checkpoint> find_named(const std::string& where, const fs::path& runs_folder, const std::string& asked,
                                     std::vector<std::string>& warnings) {
  auto found = checkpoint_of_name(where, runs_folder);
  for (const fs::path& path : {fs::path(where), runs_folder / where})
    if (!found) found = checkpoint_in(path, asked, warnings);
  return found;
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
