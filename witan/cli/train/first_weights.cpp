#include "witan/cli/train/first_weights.h"

#include <utility>

#include "witan/base/error.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/cli/models/imported_run.h"
#include "witan/train/state/named_checkpoint.h"
#include "witan/train/state/run_start.h"

namespace witan::cli {
namespace {

// "remove --init-from", "remove init_from (base.toml:3)": by what the call says it.
std::string without(const GivenConfig& given, const std::string& key) {
  const std::string place = given.place(key);
  return cat("remove ", place.starts_with("--") ? place : cat(key, " (", place, ")"));
}

bool is_within(const fs::path& path, const fs::path& folder) {
  std::error_code error;
  const fs::path place = fs::weakly_canonical(path, error).lexically_relative(fs::weakly_canonical(folder, error));
  return !place.empty() && *place.begin() != "..";
}

}  // namespace

void require_other_source(const GivenConfig& given) {
  const TrainConfig& train = given.config.train;
  std::error_code none;
  if (!fs::exists(given.run, none)) return;
  for (const auto& [key, source] : {std::pair("init_from", train.init_from), std::pair("upcycle", train.upcycle)})
    require<ConfigError>(source.empty() || !is_within(folder_of_weights(source, train.runs_folder), given.run), key,
                         " = ", source, ": --fresh would archive the run ", given.run.string(),
                         ", which these weights are of: give the new run a name of its own (--run NAME)");
}

void keep_first_weights(GivenConfig& given) {
  if (!given.saved || step_folders(given.run / "checkpoints").empty()) return;
  const TrainConfig &begun = given.saved->train, &asked = given.config.train;
  require<ConfigError>(!is_imported_only(given.run) || (asked.init_from.empty() && asked.upcycle.empty()),
                       not_resumable(given.run));
  const bool from_weights = !begun.init_from.empty() || !begun.upcycle.empty();
  const std::string from = from_weights ? cat("from ", begun.init_from, begun.upcycle) : "with random weights";
  for (std::string TrainConfig::*const key : {&TrainConfig::init_from, &TrainConfig::upcycle}) {
    std::string& now = given.config.train.*key;
    const std::string &then = begun.*key, name = key == &TrainConfig::upcycle ? "upcycle" : "init_from";
    require<ConfigError>(now.empty() || now == then, name, " = ", now, ": the run ", given.run.string(), " was begun ",
                         from, ", and is resumed from its own checkpoint: ", without(given, name),
                         ", give the new run a name of its own (--run NAME), or start over with `witan train --fresh`");
    now = then;
  }
  given.config.train.init_state = begun.init_state;
}

}  // namespace witan::cli
