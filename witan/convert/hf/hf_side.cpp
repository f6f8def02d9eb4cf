#include "witan/convert/hf/hf_side.h"

#include <algorithm>
#include <map>
#include <string>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/base/text.h"
#include "witan/checkpoint/safetensors.h"

namespace witan {
namespace {

using Metadata = std::map<std::string, std::string>;

constexpr const char *kPrefixKey = "witan_prefix", *kHeadKey = "witan_head";
constexpr size_t kSidePiece = size_t{8} << 20;  // bytes that are copied at a time

std::vector<PlacedTensor> side_tensors_in(const MappedFile& file, const fs::path& path, Metadata& metadata) {
  return parse_safetensors(file.bytes(), path.string(), stored_element_bytes, metadata);
}

// Returns the hash of the tensors' bytes, by tensor.
std::vector<std::string> write_side_file(const std::vector<PlacedTensor>& tensors, const Metadata& metadata,
                                         const fs::path& path) {
  std::vector<StoredTensor> order;
  uint64_t needed = 0;
  for (const PlacedTensor& tensor : tensors) {
    order.push_back(tensor.info);
    needed += tensor.bytes.size();
  }
  const uint64_t free = free_disk_bytes(path.parent_path());
  require<DiskFullError>(needed <= free, "cannot write ", path.string(), ": it needs ",
                         format_bytes(static_cast<double>(needed)), " and ", format_bytes(static_cast<double>(free)),
                         " are free on that disk");
  StoredWriter writer(path, order, metadata);
  std::vector<std::string> hashes;
  for (const PlacedTensor& tensor : tensors) {
    Hasher hasher;
    for (size_t at = 0; at < tensor.bytes.size(); at += kSidePiece) {
      const auto piece = tensor.bytes.subspan(at, std::min(kSidePiece, tensor.bytes.size() - at));
      writer.write(piece.data(), piece.size());
      hasher.update(piece.data(), piece.size());
      release_pages(piece);
    }
    hashes.push_back(hasher.hex());
  }
  writer.finish();
  return hashes;
}

}  // namespace

void keep_side_tensors(const HfWeights& weights, const fs::path& folder) {
  if (weights.style().prefix.empty()) return;
  std::vector<PlacedTensor> tensors = weights.side_tensors();
  // Wide elements come first, so that every tensor is aligned to its elements.
  std::ranges::stable_sort(tensors, {}, [](const PlacedTensor& tensor) {
    return -stored_element_bytes(tensor.info.dtype, tensor.info.name);
  });
  fs::create_directories(folder);
  write_side_file(tensors, {{kPrefixKey, weights.style().prefix}, {kHeadKey, weights.style().head}},
                  folder / kSideTensors);
}

std::optional<NameStyle> side_style(const fs::path& folder) {
  const fs::path path = folder / kSideTensors;
  std::error_code none;
  if (!fs::is_regular_file(path, none)) return std::nullopt;
  const MappedFile file(path);
  Metadata metadata;
  side_tensors_in(file, path, metadata);
  NameStyle style;
  style.prefix = metadata[kPrefixKey];
  style.head = metadata[kHeadKey];
  require<CheckpointError>(!style.prefix.empty(), path.string(), " does not say where the text decoder is: its ",
                           "metadata lacks ", kPrefixKey, "; import the model again");
  return style;
}

std::vector<LedgerEntry> copy_side_tensors(const fs::path& from, const fs::path& to) {
  const MappedFile file(from);
  Metadata metadata;
  const std::vector<PlacedTensor> tensors = side_tensors_in(file, from, metadata);
  const std::vector<std::string> hashes = write_side_file(tensors, metadata, to);
  std::vector<LedgerEntry> entries;
  for (size_t i = 0; i < tensors.size(); ++i)
    entries.push_back({tensors[i].info.name,
                       tensors[i].info.dtype,
                       tensors[i].info.shape,
                       hashes[i],
                       {},
                       "outside of the model: as it was imported"});
  return entries;
}

}  // namespace witan
