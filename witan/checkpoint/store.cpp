#include "witan/checkpoint/store.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/base/text.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/tensor/host.h"

namespace witan {
namespace {

constexpr uint64_t kMostManifestBytes = uint64_t{1} << 30;

std::string read_manifest(const fs::path& path) try {
  return read_file(path, kMostManifestBytes);
} catch (const IoError& e) {
  throw CheckpointError(cat("no complete checkpoint: ", e.what()));
}

void check_size(const fs::path& folder, const Manifest::File& file) {
  const fs::path path = folder / file.name;
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  require<CheckpointError>(!error, path.string(), ": the manifest names this file, but: ", error.message(), "; ",
                           kWayOut);
  require<CheckpointError>(bytes == file.digest.bytes, path.string(), " has ", bytes, " bytes, the manifest expects ",
                           file.digest.bytes, "; ", kWayOut);
}

uint64_t total_bytes(const Manifest& manifest) {
  uint64_t sum = 0;
  for (const auto* list : {&manifest.shards, &manifest.files})
    for (const auto& file : *list) sum += file.digest.bytes;
  return sum;
}

// Whether the checkpoint is intact, as far as is cheap to verify, and has this step.
Checkpoint open_whole(int64_t step, const fs::path& step_folder) {
  Checkpoint checkpoint = open_checkpoint(step_folder);
  require<CheckpointError>(checkpoint.step == step, step_folder.string(), " holds step ", checkpoint.step,
                           ": it was renamed");
  verify_if_cheap(checkpoint);
  return checkpoint;
}

template <class Open>
bool succeeds(const Open& open) try {
  open();
  return true;
} catch (const CheckpointError&) {
  return false;
}

// The steps of the intact checkpoints among `all`, newest first, that are kept for their scalar.
std::set<int64_t> best_steps(const std::vector<std::pair<int64_t, fs::path>>& all, const Retention& keep) {
  std::vector<std::pair<double, int64_t>>
      scores;  // scalar and negative step, so that of equal scalars the newer step sorts first
  if (keep.best <= 0) return {};
  for (const auto& [step, path] : all) {
    try {
      const Json scalars = open_checkpoint(path).scalars;
      const auto found = scalars.find(keep.by);
      if (found != scalars.end() && found->is_number()) scores.emplace_back(found->get<double>(), -step);
    } catch (const CheckpointError&) {
      continue;  // damaged, so not worth keeping
    }
  }
  std::ranges::sort(scores);
  std::set<int64_t> steps;
  for (const auto& [score, step] : scores)
    if (std::ssize(steps) < keep.best) steps.insert(-step);
  return steps;
}

}  // namespace

Checkpoint open_checkpoint(const fs::path& step_folder) {
  const fs::path path = step_folder / kManifestName;
  Manifest manifest = parse_manifest(read_manifest(path), path.string());
  for (const auto* list : {&manifest.shards, &manifest.files})
    for (const auto& file : *list) check_size(step_folder, file);
  return {step_folder, manifest.step, manifest.scalars, std::move(manifest)};
}

void verify_checkpoint(const Checkpoint& checkpoint) {
  for (const auto* list : {&checkpoint.manifest.shards, &checkpoint.manifest.files})
    for (const auto& file : *list) open_verified(checkpoint.folder, file);
}

void verify_if_cheap(const Checkpoint& checkpoint) {
  if (total_bytes(checkpoint.manifest) <= kCheapBytes) verify_checkpoint(checkpoint);
}

bool has_extra_file(const Checkpoint& checkpoint, const std::string& name) {
  return std::ranges::find(checkpoint.manifest.files, name, &Manifest::File::name) != checkpoint.manifest.files.end();
}

std::string read_extra_file(const Checkpoint& checkpoint, const std::string& name) {
  for (const auto& file : checkpoint.manifest.files)
    if (file.name == name) return std::string(open_verified(checkpoint.folder, file).text());
  throw CheckpointError(cat(checkpoint.folder.string(), " holds no file \"", clipped(name), '"'));
}

std::optional<Checkpoint> latest_checkpoint(const fs::path& folder, std::vector<std::string>& warnings) {
  for (const auto& [step, path] : step_folders(folder)) {
    try {
      return open_whole(step, path);
    } catch (const CheckpointError& e) {
      warnings.push_back(cat("the checkpoint of step ", step, " is damaged and is skipped: ", e.what()));
    }
  }
  return std::nullopt;
}

std::vector<fs::path> keep_last(const fs::path& folder, const Retention& keep) {
  require<ConfigError>(keep.last >= 1, "keep_last must be at least 1, got ", keep.last);
  const auto all = step_folders(folder);
  std::vector<fs::path> removed;
  if (all.empty() || !succeeds([&] { open_whole(all[0].first, all[0].second); })) return removed;
  const std::set<int64_t> best = best_steps(all, keep);
  int64_t kept = 1;
  for (const auto& [step, path] : std::span(all).subspan(1)) {
    if (best.contains(step)) {
      if (kept < keep.last) ++kept;
      continue;
    }
    if (kept < keep.last) {
      kept += succeeds([&] { open_checkpoint(path); });
      continue;
    }
    const fs::path hidden = rename_away(path);
    fsync_folder(folder);
    remove_folder(hidden);
    removed.push_back(path);
  }
  return removed;
}

void check_state(const StateTensor& state) {
  const Tensor& local = state.local;
  require<ShapeError>(local.defined() && local.contiguous() && !local.is_meta(), "checkpoint: \"", state.name,
                      "\" must be a contiguous tensor with values");
  const Tensor& rest = state.remainder;
  require<ShapeError>(
      !rest.defined() || (rest.contiguous() && rest.shape() == local.shape() && is_split(local.dtype()) &&
                          rest.dtype() == remainder_dtype(local.dtype())),
      "checkpoint: \"", state.name, "\" must be ",
      local.dtype() == DType::f16 ? "a float16 tensor and its float32 remainder" : "two tensors of 16-bit halves",
      " with one shape, got ", local.dtype(), " ", local.shape(), " and ", rest.dtype(), " ", rest.shape());
  require<ShapeError>(
      state.region.elements() == local.elements() && state.region.end() <= state.global_shape.elements(),
      "checkpoint: \"", state.name, "\": ", local.shape(), " does not hold elements ", state.region, " of the global ",
      state.global_shape);
}

}  // namespace witan
