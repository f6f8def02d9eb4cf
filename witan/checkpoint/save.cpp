#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <unordered_map>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/hash.h"
#include "witan/base/text.h"
#include "witan/checkpoint/json_fields.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/checkpoint/store.h"
#include "witan/comm/texts.h"

namespace witan {
namespace {

constexpr uint64_t kBlockBytes = 4096;  // files occupy whole blocks
constexpr int kReportDepth = 8;

// The tensors that this rank writes.
struct LocalShard {
  std::vector<TensorInfo> infos;                                // under their names in the shard
  std::unordered_map<std::string, const StateTensor*> tensors;  // by the name in the shard
  Json report = Json::object();                                 // for rank 0
};

Json sizes_of(const StateTensor& state) {
  Json sizes = Json::array();
  for (int i = 0; i < state.global_shape.dims(); ++i) sizes.push_back(state.global_shape[i]);
  return sizes;
}

LocalShard local_shard(const std::vector<StateTensor>& tensors) {
  LocalShard shard;
  Json parts = Json::array();
  for (const StateTensor& state : tensors) {
    check_state(state);
    if (!state.writes) continue;
    Json part = json_of(Manifest::Part{0, state.region});  // rank 0 numbers the shards
    part.update({{"name", state.name},
                 {"dtype", safetensors_name(state.dtype())},
                 {"shape", sizes_of(state)},
                 {"kind", static_cast<int>(state.kind)}});
    parts.push_back(std::move(part));
    if (state.region.elements() == 0) continue;
    const std::string name = part_name(state.name, state.global_shape, state.region);
    shard.infos.push_back({name, state.dtype(), part_shape(state.global_shape, state.region)});
    shard.tensors[name] = &state;
  }
  shard.report = {{"parts", std::move(parts)}, {"bytes", shard.infos.empty() ? 0 : safetensors_bytes(shard.infos)}};
  return shard;
}

std::string shard_name(int rank) {
  char name[40];
  std::snprintf(name, sizeof name, "shard-%05d.safetensors", rank);
  return name;
}

void add_part(Manifest& manifest, const Json& part, std::string_view where) {
  const std::string& name = text_member(part, "name", where);
  const DType dtype = dtype_from_safetensors(text_member(part, "dtype", where), where);
  const Shape shape = shape_member(part, "shape", dtype, where);
  auto& entry = manifest.tensors.try_emplace(name, Manifest::Entry{dtype, shape, {}}).first->second;
  entry.kind = static_cast<StateTensor::Kind>(part.at("kind").get<int>());
  require<CheckpointError>(entry.dtype == dtype && entry.shape == shape, where, ": ranks disagree about \"", name,
                           "\": ", entry.dtype, " ", entry.shape, " and ", dtype, " ", shape);
  if (integer_member(part, "length", where) > 0)
    entry.parts.push_back({manifest.shards.size() - 1, region_member(part, shape.elements(), where)});
}

// Builds the manifest from all ranks' reports; the shards have no hashes yet.
Manifest draft_manifest(const CheckpointContent& content, const std::vector<std::string>& reports,
                        std::string_view where) {
  Manifest manifest;
  manifest.step = content.step;
  manifest.scalars = content.scalars;
  for (const auto& [name, bytes] : content.files)
    manifest.files.push_back({name, {bytes.size(), hash_hex(bytes.data(), bytes.size())}});
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const Json report = parse_object(reports[rank], where, kReportDepth);
    const auto bytes = static_cast<uint64_t>(integer_member(report, "bytes", where));
    if (bytes > 0) manifest.shards.push_back({shard_name(static_cast<int>(rank)), {bytes, {}}});
    for (const Json& part : array_member(report, "parts", where)) add_part(manifest, part, where);
  }
  for (auto& [name, entry] : manifest.tensors)
    std::ranges::stable_sort(entry.parts, {}, [](const Manifest::Part& part) { return part.region.first(); });
  check_manifest(manifest, where);
  return manifest;
}

uint64_t disk_bytes(const Manifest& manifest) {
  const auto blocks = [](uint64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes; };
  uint64_t sum = blocks(manifest_text(manifest).size()) + kBlockBytes;  // space for the hashes and the folder
  for (const auto* list : {&manifest.shards, &manifest.files})
    for (const auto& file : *list) sum += blocks(file.digest.bytes);
  return sum;
}

// Describes the existing checkpoints to a run that could not save.
std::string what_is_there(const fs::path& folder) {
  const auto steps = step_folders(folder);
  if (steps.empty()) return "no checkpoint was saved yet. Free some space; the same command then starts the run again";
  std::string older;
  for (size_t i = 1; i < steps.size(); ++i) older += cat(i == 1 ? "" : ", ", steps[i].second.filename().string());
  return cat("the checkpoint of step ", steps[0].first, " is intact. Free some space",
             older.empty() ? "" : cat(" (these older checkpoints may be deleted: ", older, ")"),
             "; the same command then resumes from it");
}

// Creates FOLDER/.tmp-step-N.ID, after removing leftovers of dead runs and checking the free space.
fs::path prepare_folder(const fs::path& folder, const Manifest& manifest) {
  create_folders(folder);
  remove_left_overs(folder);
  const uint64_t needed = disk_bytes(manifest), free = free_disk_bytes(folder);
  require<DiskFullError>(needed <= free, "cannot save step ", manifest.step, " to ", folder.string(), ": it needs ",
                         format_bytes(static_cast<double>(needed)), " and ", format_bytes(static_cast<double>(free)),
                         " are free on that disk; ", what_is_there(folder));
  const fs::path temporary = folder / cat(kUnfinished, manifest.step, '.', ::getpid());
  require<CheckpointError>(fs::create_directory(temporary), "cannot save to ", temporary.string(),
                           ": it already exists; is another run saving there?");
  return temporary;
}

// Rank 0's folder is flushed with the manifest, its last file, before it is renamed. Other ranks flush their files with
// their names, since they may be on hosts that access the folder through a file server.
NameFlush flush_of(int rank) {
  return rank == 0 ? NameFlush::later : NameFlush::now;
}

// Writes this rank's shard; returns an empty digest if it has none.
FileDigest write_shard(const fs::path& temporary, int rank, const LocalShard& shard) {
  require<CheckpointError>(fs::is_directory(temporary), "cannot find the folder ", temporary.string(),
                           ", which rank 0 made: all hosts must share the run's folder");
  if (shard.infos.empty()) return {};
  SafetensorsWriter writer(temporary / shard_name(rank), shard.infos);
  for (const TensorInfo& info : writer.order()) {
    const StateTensor& state = *shard.tensors.at(info.name);
    const Tensor local = state.local.reshape(info.shape);
    if (state.remainder.defined())
      writer.write(local, state.remainder.reshape(info.shape));
    else
      writer.write(local);
  }
  return writer.finish(flush_of(rank));
}

// The text of the manifest, once every shard has its hash; checks that it parses back to the same manifest.
std::string final_text(Manifest manifest, const std::vector<std::string>& hashes, std::string_view where) {
  auto shard = manifest.shards.begin();
  for (const std::string& hash : hashes)
    if (!hash.empty()) (shard++)->digest.hash = hash;
  std::string text = manifest_text(manifest);
  require<CheckpointError>(parse_manifest(text, where).scalars == manifest.scalars, where,
                           ": a scalar is not a finite number");
  return text;
}

// Renames the folder to its final name. Returns the new name of an older folder with that name.
fs::path put_in_place(const fs::path& temporary, const fs::path& target) {
  if (!fs::exists(target)) {
    fs::rename(temporary, target);
    return {};
  }
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) return temporary;
  if (errno != EINVAL && errno != ENOSYS)
    throw_failed(cat("cannot replace ", target.string()), {errno, std::generic_category()});
  fs::path hidden = rename_away(target);  // this file system cannot exchange two names
  std::error_code error;
  fs::rename(temporary, target, error);
  if (error) {
    fs::rename(hidden, target);
    throw_failed(cat("cannot replace ", target.string()), error);
  }
  return hidden;
}

// Removes a folder at the end of the save, whether it succeeds or fails.
class Removal {
 public:
  ~Removal() {
    std::error_code ignored;  // the next save removes what stays
    if (!folder.empty()) fs::remove_all(folder, ignored);
  }
  fs::path folder;
};

}  // namespace

fs::path save_checkpoint(Group& world, Stream& stream, const fs::path& folder, const CheckpointContent& content) {
  const std::string where = cat("cannot save step ", content.step, " to ", folder.string());
  const bool first = world.rank() == 0;
  LocalShard shard;
  run_collectively(world, stream, [&] { shard = local_shard(content.tensors); });
  const auto reports = gather_texts(world, stream, shard.report.dump());

  Manifest manifest;  // rank 0 only
  Removal removal;    // rank 0 only
  run_collectively(world, stream, [&] {
    if (!first) return;
    manifest = draft_manifest(content, reports, where);
    removal.folder = prepare_folder(folder, manifest);
  });
  const fs::path temporary = broadcast_text(world, stream, removal.folder.string(), 0);

  FileDigest digest;
  run_collectively(world, stream, [&] {
    digest = write_shard(temporary, world.rank(), shard);
    if (!first) return;
    for (const auto& [name, bytes] : content.files) write_file_atomically(temporary / name, bytes, flush_of(0));
  });
  const auto hashes = gather_texts(world, stream, digest.hash);

  const fs::path target = folder / step_folder_name(content.step);
  run_collectively(world, stream, [&] {
    if (!first) return;
    for (const fs::path& record : content.records) fsync_file(record);
    write_file_atomically(temporary / kManifestName, final_text(manifest, hashes, where));
    const fs::path replaced = put_in_place(temporary, target);
    fsync_folder(folder);
    if (!replaced.empty()) remove_folder(replaced);
  });
  return target;
}

}  // namespace witan
