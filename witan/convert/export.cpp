#include "witan/convert/export.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/base/text.h"
#include "witan/checkpoint/stored_writer.h"
#include "witan/convert/export_account.h"
#include "witan/convert/hf/hf_folder.h"

namespace witan {
namespace {

constexpr int64_t kExportPiece = int64_t{8} << 20;  // bytes of a stretch

class HfExporter {
 public:
  HfExporter(CheckpointWeights& weights, const HfExport& how, const fs::path& folder)
      : weights_(weights), how_(how), folder_(folder), tensors_(tensors_of(weights.model())) {
    const int64_t vocabulary = weights.model().vocab_size;
    const auto links = link_model(*how.architecture, how.style, tensors_, vocabulary);
    auto order = other_tensors(*how.architecture, how.style, tensors_, vocabulary);
    links_ = inverse_links(links, order);
    if (how.style.tied_copy) add_copy(kHeadName, embedding_name(*how.architecture, how.style));
    if (how.style.mtp_copies)
      for (const auto& [copy, of] : mtp_copies(*how.architecture, how.style, weights.model())) add_copy(copy, of);
    account_.ledger.from = "witan";
    account_.ledger.to = "hf";
    account_.ledger.architecture = how.architecture->model_type;
    account_.ledger.style = how.style;
  }

  Ledger run() {
    const auto files = division();
    require_disk_space();
    nlohmann::ordered_json index = {{"metadata", {{"total_size", total_bytes()}}},
                                    {"weight_map", nlohmann::ordered_json::object()}};
    for (size_t file = 0; file < files.size(); ++file) {
      const std::string name = file_name(file, files.size());
      write_file(name, files[file]);
      for (const size_t i : files[file]) index["weight_map"][links_[i].name] = name;
    }
    if (files.size() > 1) write_file_atomically(folder_ / kHfIndex, index.dump(2) + "\n");
    account_.close();
    return std::move(account_.ledger);
  }

 private:
  void add_copy(std::string_view name, const std::string& of) {
    Link copy = *std::ranges::find(links_, of, &Link::name);
    copy.name = name;
    for (SharedBox& piece : copy.pieces) piece.to.name = copy.name;
    links_.push_back(std::move(copy));
  }

  Element dtype_of(const Link& link) const {
    if (how_.dtype) return *how_.dtype;
    if (const auto known = how_.dtypes.find(link.name); known != how_.dtypes.end())
      if (const Element element = element_from_name(known->second, link.name); size_of(element) > 1) return element;
    return *element_of(weights_.model().compute_dtype());
  }
  uint64_t bytes_of(const Link& link) const { return static_cast<uint64_t>(link.elements() * size_of(dtype_of(link))); }
  uint64_t total_bytes() const {
    uint64_t sum = 0;
    for (const Link& link : links_) sum += bytes_of(link);
    return sum;
  }

  void require_disk_space() const {
    const uint64_t needed = total_bytes(), free = free_disk_bytes(folder_);
    require<DiskFullError>(needed <= free, "cannot export to ", folder_.string(), ": it needs ",
                           format_bytes(static_cast<double>(needed)), " and ", format_bytes(static_cast<double>(free)),
                           " are free on that disk");
  }

  // Indices of links, by file.
  std::vector<std::vector<size_t>> division() const {
    std::vector<std::vector<size_t>> files(1);
    uint64_t bytes = 0;
    for (size_t i = 0; i < links_.size(); ++i) {
      if (!files.back().empty() && bytes + bytes_of(links_[i]) > how_.shard_bytes) {
        files.emplace_back();
        bytes = 0;
      }
      files.back().push_back(i);
      bytes += bytes_of(links_[i]);
    }
    return files;
  }

  static std::string file_name(size_t file, size_t files) {
    if (files == 1) return kHfWeights;
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", file + 1, files);
    return name;
  }

  void write_file(const std::string& name, const std::vector<size_t>& links) {
    std::vector<StoredTensor> order;
    for (const size_t i : links) {
      const Link& link = links_[i];
      order.push_back({link.name, std::string(name_of(dtype_of(link))), link.shape, bytes_of(link)});
    }
    StoredWriter writer(folder_ / name, order);
    for (const size_t i : links) write_tensor(writer, links_[i]);
    writer.finish();
  }

  void write_tensor(StoredWriter& writer, const Link& link) {
    account_.hold(link);
    const Element element = dtype_of(link);
    const int64_t width = size_of(element), most = kExportPiece / width;
    std::vector<std::byte> piece(static_cast<size_t>(std::min(most, link.elements()) * width));
    Hasher hasher;
    for (int64_t first = 0; first < link.elements(); first += most) {
      const int64_t count = std::min(most, link.elements() - first);
      gather(link, first, count, element, piece.data(), [&](const std::string& name) { return weights_.whole(name); });
      writer.write(piece.data(), static_cast<size_t>(count * width));
      hasher.update(piece.data(), static_cast<size_t>(count * width));
    }
    account_.add(link, name_of(element), hasher.hex());
  }

  CheckpointWeights& weights_;
  const HfExport& how_;
  const fs::path folder_;
  const std::vector<ModelTensor> tensors_;
  std::vector<Link> links_;
  ExportAccount account_{weights_};
};

}  // namespace

Ledger export_weights(CheckpointWeights& weights, const HfExport& how, const fs::path& folder) {
  return HfExporter(weights, how, folder).run();
}

}  // namespace witan
