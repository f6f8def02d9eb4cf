#include "witan/train/weights/load_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/tensor/cuda.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/train/config/saved_config.h"
#include "witan/train/state/named_checkpoint.h"
#include "witan/train/state/run_folder.h"
#include "witan/train/state/run_start.h"
#include "witan/train/step/device.h"
#include "witan/train/step/rank_model.h"
#include "witan/train/step/reference.h"
#include "witan/train/weights/kept_reference.h"

namespace witan {
namespace {

Groups groups_of_one(const RunConfig& config) {
  return make_meta_groups(Layout(config.parallel, 1, config.model.moe.num_experts), 0);
}

// Kernels size their scratch memory by the threads of the pool, which must be the one that will do the work.
int64_t bytes_needed(const RunConfig& config, ThreadPool& pool, const TrainedModel::Work& work, Device device) {
  Stream stream({Device::Kind::meta, device.index, device.kind}, Arena::meta(), pool);
  const Groups groups = groups_of_one(config);
  Transformer model(stream, config.model, 0, groups.model_axes(config.parallel));
  const CodedUnits units(stream, model, groups);
  work(stream, model);
  return stream.arena().high_water();
}

// Refuses models that the GPU kernels do not support before memory is reserved.
const RunConfig& validated(const ResolvedConfig& config, Device device) {
  if (device.kind != Device::Kind::cuda) return config;
  RunConfig there = config;
  there.parallel.device = "cuda";
  there.validate();
  return config;
}

// Only imported runs can lack a tokenizer.
void require_tokenizer(const RunCheckpoint& found) {
  if (has_extra_file(found.checkpoint, "tokenizer.json")) return;
  throw CheckpointError(cat("the run ", found.folder.string(),
                            " has no tokenizer, which this command needs for text: it was imported from a model whose "
                            "folder holds none that Witan can read, as Megatron-LM's checkpoints never do. "
                            "Import it again with the model's tokenizer: `witan import SOURCE --run NEW --tokenizer "
                            "FILE`, or remove this run first (`witan runs remove ",
                            flags_of_run(found.folder), "`) and import as ", found.folder.filename().string()));
}

}  // namespace

ResolvedConfig config_for_one_rank(const Checkpoint& checkpoint) {
  RunConfig config = config_of(checkpoint);
  config.parallel = {};
  config.parallel.ranks = config.parallel.expert_model_parallel_size = 1;
  config.parallel.device = "cpu";
  config.model.recompute_granularity = "none";
  return resolve(config, {});
}

bool holds_run(const fs::path& folder) {
  std::error_code none;
  return fs::exists(folder / "config.toml", none) || !step_folders(folder / "checkpoints").empty();
}

std::vector<std::string> list_runs(const fs::path& runs_folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(runs_folder, error))
    if (holds_run(entry.path())) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

fs::path find_run(const fs::path& runs_folder, const std::string& name) {
  const auto names = list_runs(runs_folder);
  require<UsageError>(!names.empty(), "there is no run in ", runs_folder.string(),
                      ": train one first (`witan train`), or give the folder of runs with --runs-folder");
  if (name.empty()) return runs_folder / latest_run(runs_folder);
  require<UsageError>(std::find(names.begin(), names.end(), name) != names.end(), "there is no run ", clipped(name),
                      " in ", runs_folder.string(), suggestion(name, names), "; it has ",
                      fmt::format("{}", fmt::join(names, ", ")));
  return runs_folder / name;
}

RunCheckpoint open_run_checkpoint(const fs::path& runs_folder, const std::string& name) {
  const RunName named = parse_run_name(runs_folder, name);
  const fs::path folder = find_run(runs_folder, named.run), checkpoints = folder / "checkpoints";
  std::vector<std::string> warnings;
  auto found = named.checkpoint.empty() ? latest_checkpoint(checkpoints, warnings)
                                        : find_checkpoint(checkpoints, named.checkpoint);
  if (!found && !warnings.empty())
    throw CheckpointError(
        fmt::format("{}: no checkpoint is intact: {}", checkpoints.string(), fmt::join(warnings, "; ")));
  if (!found)
    if (const auto lost = lost_checkpoints(folder)) throw CheckpointError(*lost);
  require<CheckpointError>(found.has_value(), folder.string(),
                           " has no checkpoint yet: train it further (`witan train --run ", flags_of_run(folder),
                           "`); a stopped run saves one");
  if (auto lost = named.checkpoint == "best" ? lost_best(*found) : std::nullopt) warnings.push_back(std::move(*lost));
  return {folder, std::move(*found), std::move(warnings)};
}

TrainedRun open_run(const fs::path& runs_folder, const std::string& name) {
  RunCheckpoint found = open_run_checkpoint(runs_folder, name);
  require_tokenizer(found);
  ResolvedConfig config = config_for_one_rank(found.checkpoint);
  TrainedRun run{std::move(found.folder), std::move(found.checkpoint), std::move(config), nullptr,
                 std::move(found.warnings)};
  run.tokenizer = std::make_shared<Tokenizer>(parse_tokenizer_json(
      read_extra_file(run.checkpoint, "tokenizer.json"), (run.checkpoint.folder / "tokenizer.json").string()));
  require<CheckpointError>(run.tokenizer->vocab_size() <= run.config->model.vocab_size, run.checkpoint.folder.string(),
                           ": the tokenizer has ", run.tokenizer->vocab_size(), " entries, the model only ",
                           run.config->model.vocab_size);
  return run;
}

// A run keeps the weights of its reference, unless they are those below its adapters.
std::optional<TrainedRun> reference_run(const TrainedRun& run) {
  const ReferenceKind kind = run.config->reference();
  if (kind == ReferenceKind::none || kind == ReferenceKind::columns) return std::nullopt;
  RunConfig config = Reference::config_of(run.config);
  config.objective = {};
  config.data.preferences = false;
  TrainedRun reference = run;
  if (kind != ReferenceKind::base) reference.checkpoint = require_kept_reference(run.folder);
  reference.config = resolve(config, {});
  return reference;
}

RunData open_run_data(const TrainedRun& run) {
  const DataConfig& data = run.config->data;
  return open_run_data(run.config, run.tokenizer,
                       data.reads_shards() ? fs::path(data.data_path) : run.folder / "data" / "tokens");
}

Device device_named(const std::string& name) {
  if (name == "cpu" || (name == "auto" && cuda::devices() == 0)) return {};
  require<UsageError>(name == "auto" || name == "cuda", "--device ", clipped(name), ": a device is auto, cpu or cuda");
  require<DeviceError>(cuda::devices() > 0, "--device cuda: ", cuda::why_none());
  return {Device::Kind::cuda};
}

TrainedModel::TrainedModel(const TrainedRun& run, int threads, const Work& work, Device device)
    : groups_(groups_of_one(run.config)),
      pool_(threads),
      stream_(device, reserve_arena(device, bytes_needed(validated(run.config, device), pool_, work, device)), pool_),
      model_(stream_, run.config->model, 0, groups_.model_axes(run.config->parallel)),
      units_(stream_, model_, groups_) {
  load_tensors(run.checkpoint, state_of_model(model_.parameters(), model_.buffers(), groups_), Extra::allow);
}

}  // namespace witan
