#include "witan/convert/import.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/hash.h"
#include "witan/base/text.h"
#include "witan/checkpoint/manifest.h"
#include "witan/checkpoint/safetensors.h"
#include "witan/checkpoint/step_folders.h"

namespace witan {
namespace {

constexpr int64_t kImportPiece = int64_t{8} << 20;   // bytes that are converted at a time
constexpr uint64_t kShardBytes = uint64_t{4} << 30;  // a shard is closed when it has this many
constexpr size_t kHashPiece = size_t{16} << 20;

// The links of one shard, as indices, sorted by descending size of an element so that every tensor is aligned.
using ShardLinks = std::vector<size_t>;

void hash_mapped(Hasher& hasher, std::span<const std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); at += kHashPiece) {
    const auto piece = bytes.subspan(at, std::min(kHashPiece, bytes.size() - at));
    hasher.update(piece.data(), piece.size());
    release_pages(piece);
  }
}

std::string hash_of(const ForeignWeights::Source& tensor) {
  Hasher hasher;
  hash_mapped(hasher, tensor.bytes);
  for (const auto& piece : tensor.more) hash_mapped(hasher, piece);
  return hasher.hex();
}

// Removes the folder on destruction unless it was put in place.
class Unfinished {
 public:
  explicit Unfinished(fs::path path) : path_(std::move(path)) {}
  ~Unfinished() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  void put_in_place(const fs::path& target) {
    std::error_code error;
    fs::rename(path_, target, error);
    if (error) throw_failed(cat("cannot name ", target.string()), error);
    path_.clear();
  }

 private:
  fs::path path_;
};

class Importer {
 public:
  Importer(ForeignWeights& weights, const fs::path& checkpoints) : weights_(weights), checkpoints_(checkpoints) {
    for (const ModelTensor& tensor : weights.tensors()) dtypes_.emplace(tensor.name, tensor.dtype);
    ledger_.from = weights.format();
    ledger_.to = "witan";
    ledger_.architecture = weights.architecture().model_type;
    ledger_.style = weights.style();
  }

  Imported run(const std::vector<std::pair<std::string, std::string>>& files, const Json& scalars) {
    const fs::path target = checkpoints_ / step_folder_name(0),
                   made = checkpoints_ / cat(kUnfinished, "0.", ::getpid());
    create_folders(checkpoints_);
    remove_left_overs(checkpoints_);
    require_disk_space();
    fs::create_directory(made);
    Unfinished folder(made);
    manifest_.scalars = scalars;
    for (const ShardLinks& shard : shards()) write_shard(made, shard);
    for (const auto& [name, bytes] : files) {
      write_file_atomically(made / name, bytes);
      manifest_.files.push_back({name, {bytes.size(), hash_hex(bytes.data(), bytes.size())}});
    }
    check_manifest(manifest_, made.string());
    write_file_atomically(made / kManifestName, manifest_text(manifest_));
    fsync_folder(made);
    folder.put_in_place(target);
    fsync_folder(checkpoints_);
    account_for_sources();
    account_for_buffers();
    return {std::move(ledger_), std::move(non_finite_)};
  }

 private:
  uint64_t bytes_of(const Link& link) const {
    return static_cast<uint64_t>(link.elements() * size_of(dtypes_.at(link.name)));
  }

  void require_disk_space() const {
    uint64_t needed = 0;
    for (const Link& link : weights_.links()) needed += bytes_of(link);
    const uint64_t free = free_disk_bytes(checkpoints_);
    require<DiskFullError>(needed <= free, "cannot import into ", checkpoints_.string(), ": it needs ",
                           format_bytes(static_cast<double>(needed)), " and ", format_bytes(static_cast<double>(free)),
                           " are free on that disk");
  }

  std::vector<ShardLinks> shards() const {
    std::vector<ShardLinks> all(1);
    uint64_t bytes = 0;
    for (size_t i = 0; i < weights_.links().size(); ++i) {
      if (bytes >= kShardBytes) {
        all.emplace_back();
        bytes = 0;
      }
      all.back().push_back(i);
      bytes += bytes_of(weights_.links()[i]);
    }
    for (ShardLinks& shard : all)
      std::ranges::stable_sort(shard, std::greater{},
                               [&](size_t i) { return size_of(dtypes_.at(weights_.links()[i].name)); });
    return all;
  }

  void write_shard(const fs::path& folder, const ShardLinks& shard) {
    char name[40];
    std::snprintf(name, sizeof name, "shard-%05zu.safetensors", manifest_.shards.size());
    std::vector<StoredTensor> order;
    for (const size_t i : shard) {
      const Link& link = weights_.links()[i];
      order.push_back({link.name, std::string(safetensors_name(dtypes_.at(link.name))), link.shape, bytes_of(link)});
    }
    StoredWriter writer(folder / name, order);
    for (const size_t i : shard) write_tensor(writer, weights_.links()[i]);
    manifest_.shards.push_back({name, writer.finish()});
  }

  void write_tensor(StoredWriter& writer, const Link& link) {
    const DType dtype = dtypes_.at(link.name);
    const Element element = *element_of(dtype);
    const int64_t width = size_of(dtype), most = kImportPiece / width;
    std::vector<std::byte> piece(static_cast<size_t>(std::min(most, link.elements()) * width));
    Hasher hasher;
    int64_t non_finite = 0;
    for (int64_t first = 0; first < link.elements(); first += most) {
      const int64_t count = std::min(most, link.elements() - first);
      weights_.gather_to(link, first, count, element, piece.data());
      writer.write(piece.data(), static_cast<size_t>(count * width));
      hasher.update(piece.data(), static_cast<size_t>(count * width));
      non_finite += count_non_finite(element, {piece.data(), static_cast<size_t>(count * width)});
    }
    note_non_finite(link, non_finite);
    weights_.release(link);
    Manifest::Entry entry{dtype, link.shape, {}};
    for (const ModelTensor& tensor : weights_.tensors())
      if (tensor.name == link.name && tensor.buffer) entry.kind = StateTensor::Kind::buffer;
    if (link.elements() > 0) entry.parts.push_back({manifest_.shards.size(), {0, link.elements()}});
    manifest_.tensors.emplace(link.name, std::move(entry));
    LedgerEntry& target = ledger_.target.emplace_back();
    target = {link.name, std::string(safetensors_name(dtype)), link.shape, hasher.hex(), {}, {}};
    for (const SharedBox& from : link.pieces) {
      target.others.push_back(from.from.name);
      went_into_[from.from.name].push_back(link.name);
    }
    if (link.padding > 0) target.note = cat("the last ", link.padding / link.shape.last(), " rows are padding, 0");
  }

  void note_non_finite(const Link& link, int64_t values) {
    if (values == 0) return;
    if (non_finite_.tensors == 0)
      non_finite_.first = link.pieces.size() == 1 ? link.pieces.front().from.name : link.name;
    ++non_finite_.tensors;
    non_finite_.values += values;
  }

  void account_for_sources() {
    for (const ForeignWeights::Source& tensor : weights_.sources()) {
      const auto note = weights_.notes().find(tensor.name);
      ledger_.source.push_back({tensor.name, tensor.dtype, tensor.shape, hash_of(tensor), went_into_[tensor.name],
                                note == weights_.notes().end() ? "" : note->second});
    }
  }

  // Files of other programs lack Witan's own buffers, which begin as in a new model.
  void account_for_buffers() {
    for (const ModelTensor& tensor : weights_.tensors())
      if (tensor.buffer && !manifest_.tensors.contains(tensor.name))
        ledger_.target.push_back({tensor.name,
                                  std::string(safetensors_name(tensor.dtype)),
                                  tensor.shape,
                                  "",
                                  {},
                                  "Witan's own, begins at its initial value"});
  }

  ForeignWeights& weights_;
  const fs::path checkpoints_;
  std::map<std::string, DType> dtypes_;  // by Witan's tensor
  std::map<std::string, std::vector<std::string>> went_into_;
  Manifest manifest_;
  Ledger ledger_;
  NonFinite non_finite_;
};

}  // namespace

std::string describe(const NonFinite& found, const std::string& whose) {
  if (found.values == 0) return "";
  return cat(counted(found.values, "value"), " of ", whose, found.values == 1 ? " is" : " are", " NaN or infinite, in ",
             counted(found.tensors, "tensor"), ", the first of them ", clipped(found.first),
             ": what the model computes with them is NaN. They were copied as they are; the source may be damaged, or "
             "its training have diverged");
}

Imported import_weights(ForeignWeights& weights, const fs::path& checkpoints,
                        const std::vector<std::pair<std::string, std::string>>& files, const Json& scalars) {
  return Importer(weights, checkpoints).run(files, scalars);
}

}  // namespace witan
