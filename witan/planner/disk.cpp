#include "witan/planner/disk.h"

#include <algorithm>
#include <map>

#include "witan/base/counted.h"
#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/planner/meta_rank.h"

namespace witan {
namespace {

// The same training on one rank, which holds every tensor whole.
ResolvedConfig on_one_rank(const ResolvedConfig& config) {
  return config.with([&](RunConfig& values) {
    ParallelConfig& one = values.parallel = {};
    one.device = config->parallel.device;
    one.gradient_dtype = config->parallel.gradient_dtype;
    one.ranks = one.threads = one.expert_model_parallel_size = 1;
  });
}

// Parts that a tensor is at most written in.
int64_t most_parts(const ParallelConfig& parallel) {
  return std::max<int64_t>(parallel.ranks / parallel.pipeline_model_parallel_size, 1);
}

}  // namespace

int64_t checkpoint_bytes(const ResolvedConfig& config) {
  constexpr int64_t kBlock = 4096, kOfPart = 400, kOfEntry = 96, kConfig = 16 << 10;
  const ResolvedConfig one = on_one_rank(config);
  const Layout layout = layout_of(one);
  const int64_t parts = most_parts(config->parallel);
  int64_t bytes = 0;
  for (const auto& [name, size] : MetaRank(one, layout, 0).saved_tensors())
    bytes += size + parts * (kOfPart + 2 * static_cast<int64_t>(name.size()));  // in a shard's header, in the manifest
  const int64_t files = config->parallel.ranks + 4;  // shards, manifest, configuration, tokenizer, the folder
  return bytes + files * kBlock + kConfig + config->model.vocab_size * kOfEntry;
}

int64_t more_checkpoints(const TrainConfig& config, const DiskState& state) {
  const int64_t every = config.save_interval, last = config.train_iters;
  const int64_t saves = every > 0 ? last / every - state.step / every + (last % every != 0) : 1;
  return std::clamp<int64_t>(config.keep_last + config.keep_best + 1 - state.checkpoints, 1,
                             std::max<int64_t>(saves, 1));
}

void require_disk(const TrainConfig& config, int64_t bytes, const DiskState& state, const fs::path& folder,
                  uint64_t free) {
  const auto size = [](double count) { return format_bytes(count); };
  const auto each = static_cast<double>(bytes), have = static_cast<double>(free);
  const char* elsewhere = "store runs on another disk (--runs-folder FOLDER)";
  require<DiskFullError>(have >= each, folder.string(), ": a checkpoint of this run takes ", size(each), ", and ",
                         size(have), " are free on that disk, so that none could be saved. Free ", size(each - have),
                         ", or ", elsewhere);
  const int64_t more = more_checkpoints(config, state);
  const double needed = static_cast<double>(more) * each;
  if (have >= needed) return;
  TrainConfig fewer = config;  // the most that fit
  fewer.keep_last = std::max<int64_t>(static_cast<int64_t>(have / each) + state.checkpoints - config.keep_best - 1, 1);
  const bool fits = static_cast<double>(more_checkpoints(fewer, state)) * each <= have;
  throw DiskFullError(cat(
      folder.string(), ": the run keeps ", counted(config.keep_last + config.keep_best, "checkpoint"), " of ",
      size(each), " and writes the next one before it deletes the oldest: it needs ", size(needed),
      state.checkpoints > 0 ? " more" : "", ", and ", size(have), " are free on that disk. Free ", size(needed - have),
      fits && fewer.keep_last < config.keep_last ? cat(", keep fewer (--keep-last ", fewer.keep_last, ")") : "",
      ", or ", elsewhere));
}

uint64_t free_bytes_for(const fs::path& folder) {
  fs::path there = fs::absolute(folder);
  std::error_code none;
  while (!fs::is_directory(there, none) && there.has_relative_path()) there = there.parent_path();
  return free_disk_bytes(there);
}

}  // namespace witan
