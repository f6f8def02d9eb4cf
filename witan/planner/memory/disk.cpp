#include "witan/planner/memory/disk.h"

#include <algorithm>
#include <map>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/planner/memory/meta_rank.h"
#include "witan/train/rollouts/rollout_files.h"

namespace witan {
namespace {

// Configures the training for one rank, which holds every tensor completely.
ResolvedConfig on_one_rank(const ResolvedConfig& config) {
  return config.with([&](RunConfig& values) {
    ParallelConfig& one = values.parallel = {};
    one.device = config->parallel.device;
    one.gradient_dtype = config->parallel.gradient_dtype;
    one.ranks = one.threads = one.expert_model_parallel_size = 1;
  });
}

// The most parts in which a tensor is written.
int64_t most_parts(const ParallelConfig& parallel) {
  return std::max<int64_t>(parallel.ranks / parallel.pipeline_model_parallel_size, 1);
}

}  // namespace

FolderBytes folder_bytes(const ResolvedConfig& config) {
  constexpr int64_t kBlock = 4096, kOfPart = 400, kOfEntry = 96, kConfig = 16 << 10, kBatchArrays = 5;
  const ResolvedConfig one = on_one_rank(config);
  const Layout layout = layout_of(one);
  const int64_t files = config->parallel.ranks + 4;  // shards, manifest, configuration, tokenizer, the folder
  const int64_t others = files * kBlock + kConfig + config->model.vocab_size * kOfEntry;
  FolderBytes bytes{others, others};
  const auto in_headers = [parts = most_parts(config->parallel)](size_t name) {
    return parts * (kOfPart + 2 * static_cast<int64_t>(name));  // in a shard's header and in the manifest
  };
  MetaRank rank(one, layout, 0);
  for (const auto& [name, tensor] : rank.saved_tensors()) {
    const int64_t needed = tensor.bytes + in_headers(name.size());
    bytes.checkpoint += needed;
    if (StateTensor::is_of_model(tensor.kind)) bytes.anomaly += needed;
  }
  for (const auto& [name, tensor] : rank.reference_tensors()) bytes.reference += tensor.bytes + in_headers(name.size());
  if (bytes.reference > 0) bytes.reference += others;
  const int64_t tokens = config->train.global_batch_size * config->data.seq_length;
  bytes.anomaly += kBatchArrays * (tokens * static_cast<int64_t>(sizeof(int32_t)) + in_headers(32));
  return bytes;
}

int64_t more_checkpoints(const TrainConfig& config, const DiskState& state) {
  const int64_t every = config.save_interval, last = config.train_iters;
  const int64_t saves = every > 0 ? last / every - state.step / every + (last % every != 0) : 1;
  return std::clamp<int64_t>(config.keep_last + config.keep_best + 1 - state.checkpoints, 1,
                             std::max<int64_t>(saves, 1));
}

int64_t more_anomalies(const TrainConfig& config, const DiskState& state) {
  return std::clamp<int64_t>(config.keep_anomalies - state.anomalies, 0,
                             std::max<int64_t>(config.train_iters - state.step, 0));
}

namespace {

double of_anomalies(const TrainConfig& config, const FolderBytes& bytes, const DiskState& state) {
  return static_cast<double>(more_anomalies(config, state)) * static_cast<double>(bytes.anomaly);
}

// Suggests what to keep less of so that the rest fits: anomalies, else checkpoints, else both. Empty if nothing is
// enough.
std::string what_to_give_up(const TrainConfig& config, const FolderBytes& bytes, const DiskState& state, double have) {
  const auto each = static_cast<double>(bytes.checkpoint), anomalies = of_anomalies(config, bytes, state);
  if (static_cast<double>(more_checkpoints(config, state)) * each <= have)
    return ", do not keep those steps (--keep-anomalies 0)";
  const auto most_kept = [&](double room) -> int64_t {  // 0 if that is not fewer, or if none fit
    TrainConfig fewer = config;
    fewer.keep_last =
        std::max<int64_t>(static_cast<int64_t>(room / each) + state.checkpoints - config.keep_best - 1, 1);
    const bool fits = static_cast<double>(more_checkpoints(fewer, state)) * each <= room;
    return fits && fewer.keep_last < config.keep_last ? fewer.keep_last : 0;
  };
  if (const int64_t kept = most_kept(have - anomalies); kept > 0) return cat(", keep fewer (--keep-last ", kept, ")");
  if (const int64_t kept = most_kept(have); kept > 0)
    return cat(", keep fewer (--keep-last ", kept, " --keep-anomalies 0)");
  return "";
}

// Describes the space of checkpoints: a short run keeps all that it saves, a longer one deletes some.
std::string checkpoints_text(const TrainConfig& config, const DiskState& state, double each) {
  const int64_t kept = config.keep_last + config.keep_best, more = more_checkpoints(config, state);
  if (state.checkpoints + more <= kept)
    return cat("the run keeps ", counted(more, state.checkpoints > 0 ? "more checkpoint" : "checkpoint"), " of ",
               format_bytes(each), state.checkpoints > 0 ? "" : ", all that it saves");
  return cat("the run keeps ", counted(kept, "checkpoint"), " of ", format_bytes(each),
             " and writes the next one before it deletes the oldest");
}

}  // namespace

void require_disk(const TrainConfig& config, const FolderBytes& bytes, const DiskState& state, const fs::path& folder,
                  uint64_t free) {
  const auto size = [](double count) { return format_bytes(count); };
  const double of_reference = state.step == 0 ? static_cast<double>(bytes.reference) : 0;
  const auto each = static_cast<double>(bytes.checkpoint);
  const double have = std::max(static_cast<double>(free) - of_reference, 0.0);
  const char* elsewhere = "store runs on another disk (--runs-folder FOLDER)";
  require<DiskFullError>(have >= each, folder.string(), ": a checkpoint of this run takes ", size(each), ", and ",
                         size(have), " are free on that disk, so that none could be saved. Free ", size(each - have),
                         ", or ", elsewhere);
  const double of_checkpoints = static_cast<double>(more_checkpoints(config, state)) * each;
  const int64_t anomalies = more_anomalies(config, state);
  const double needed = of_checkpoints + of_anomalies(config, bytes, state);
  if (have >= needed) return;
  throw DiskFullError(cat(folder.string(), ": ", checkpoints_text(config, state, each),
                          anomalies > 0
                              ? cat(", and keeps ", anomalies, state.anomalies > 0 ? " more" : "",
                                    " of the steps that go wrong, ", size(static_cast<double>(bytes.anomaly)), " each")
                              : "",
                          ": it needs ", size(needed), state.checkpoints > 0 ? " more" : "", ", and ", size(have),
                          " are free on that disk. Free ", size(needed - have),
                          what_to_give_up(config, bytes, state, have), ", or ", elsewhere));
}

std::string warn_of_rollouts(const RunConfig& config, const FolderBytes& bytes, const DiskState& state,
                             const fs::path& folder, uint64_t free) {
  const auto of_step = static_cast<double>(rollout_file_bytes(config));
  const int64_t files = std::min(kept_rollout_files(config), config.train.train_iters - state.step);
  const double others =
      static_cast<double>(more_checkpoints(config.train, state)) * static_cast<double>(bytes.checkpoint) +
      of_anomalies(config.train, bytes, state) + (state.step == 0 ? static_cast<double>(bytes.reference) : 0);
  const double room = std::max(static_cast<double>(free) - others, 0.0), needed = static_cast<double>(files) * of_step;
  if (needed <= room) return "";
  return cat(folder.string(), ": if all answers are long, those of ", counted(files, "step"), " take ",
             format_bytes(needed), " in rollouts, and besides checkpoints ", format_bytes(room),
             " are free on that disk: keep fewer (--keep-rollouts ",
             std::max<int64_t>(static_cast<int64_t>(room / of_step), 1),
             "), or store runs on another disk (--runs-folder FOLDER)");
}

uint64_t free_bytes_for(const fs::path& folder) {
  fs::path there = fs::absolute(folder);
  std::error_code none;
  while (!fs::is_directory(there, none) && there.has_relative_path()) there = there.parent_path();
  return free_disk_bytes(there);
}

}  // namespace witan
