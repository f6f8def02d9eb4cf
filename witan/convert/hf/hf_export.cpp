#include "witan/convert/hf/hf_export.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/base/text.h"
#include "witan/checkpoint/safetensors.h"
#include "witan/convert/export_account.h"
#include "witan/convert/hf/hf_folder.h"
#include "witan/convert/hf/hf_side.h"

namespace witan {
namespace {

constexpr int64_t kExportPiece = int64_t{8} << 20;  // bytes that are converted at a time

// The folder's tensors as links to the checkpoint's.
std::vector<Link> folder_links(const CheckpointWeights& weights, const HfExport& how) {
  if (how.quantisation) check_quantisation(*how.quantisation, *how.architecture);
  const std::vector<ModelTensor> tensors = tensors_of(weights.model());
  std::vector<Link> links = inverse_links(link_model(*how.architecture, how.style, tensors, weights.model()),
                                          other_tensors(*how.architecture, how.style, tensors, weights.model()));
  const auto add_copy = [&](std::string_view name, const std::string& of) {
    Link copy = *std::ranges::find(links, of, &Link::name);
    copy.name = name;
    for (SharedBox& piece : copy.pieces) piece.to.name = copy.name;
    links.push_back(std::move(copy));
  };
  if (how.style.tied_copy) add_copy(head_name(how.style), embedding_name(*how.architecture, how.style));
  if (how.style.mtp_copies)
    for (const auto& [copy, of] : mtp_copies(*how.architecture, how.style, weights.model())) add_copy(copy, of);
  return links;
}

std::optional<HfQuantiser> quantiser_for(const CheckpointWeights& weights, const HfExport& how,
                                         const std::vector<Link>& links) {
  if (!how.quantisation) return std::nullopt;
  const Element own = *element_of(weights.model().compute_dtype());
  return HfQuantiser(*how.quantisation, own == Element::f64 ? Element::f32 : own, links);
}

class HfExporter {
 public:
  HfExporter(CheckpointWeights& weights, const HfExport& how, const fs::path& folder)
      : weights_(weights),
        how_(how),
        folder_(folder),
        links_(folder_links(weights, how)),
        quantiser_(quantiser_for(weights, how, links_)),
        shapes_(weights.weights()) {
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
    const size_t count = files.size() + (how_.side.empty() ? 0 : 1);
    for (size_t file = 0; file < files.size(); ++file) {
      const std::string name = file_name(file, count);
      for (const std::string& tensor : write_file(name, files[file])) index["weight_map"][tensor] = name;
    }
    if (!how_.side.empty()) write_side_tensors(file_name(files.size(), count), index);
    if (count > 1) write_file_atomically(folder_ / kHfIndex, index.dump(2) + "\n");
    account_.close();
    return std::move(account_.ledger);
  }

 private:
  // A tensor of a file, and the link that it is made from; a quantised link gives several.
  enum class Role : uint8_t { plain, before, codes, scales };
  struct Item {
    StoredTensor info;
    size_t link = 0;
    Role role = Role::plain;
  };

  void write_side_tensors(const std::string& name, nlohmann::ordered_json& index) {
    for (LedgerEntry& entry : copy_side_tensors(how_.side, folder_ / name)) {
      index["weight_map"][entry.name] = name;
      index["metadata"]["total_size"] =
          index["metadata"]["total_size"].get<uint64_t>() +
          static_cast<uint64_t>(entry.shape.elements() * stored_element_bytes(entry.dtype, entry.name));
      account_.ledger.target.push_back(std::move(entry));
    }
  }

  bool quantises(const Link& link) const { return quantiser_ && quantiser_->takes(link); }

  Element dtype_of(const Link& link) const {
    if (is_table_of_experts(link.name)) return Element::i64;
    if (how_.dtype) return *how_.dtype;
    if (const auto known = how_.dtypes.find(link.name); known != how_.dtypes.end())
      if (const Element element = element_from_name(known->second, link.name); size_of(element) > 1) return element;
    return *element_of(weights_.model().compute_dtype());
  }
  std::vector<Item> items_of(size_t index) const {
    const Link& link = links_[index];
    if (!quantises(link)) {
      const Element element = dtype_of(link);
      const auto bytes = static_cast<uint64_t>(link.elements() * size_of(element));
      return {{{link.name, std::string(name_of(element)), link.shape, bytes}, index}};
    }
    const HfQuantiser::Parts parts = quantiser_->parts(link);
    std::vector<Item> items;
    for (const StoredTensor& part : parts.before) items.push_back({part, index, Role::before});
    items.push_back({parts.codes, index, Role::codes});
    items.push_back({parts.scales, index, Role::scales});
    return items;
  }
  uint64_t bytes_of(size_t link) const {
    uint64_t sum = 0;
    for (const Item& item : items_of(link)) sum += item.info.bytes;
    return sum;
  }
  uint64_t total_bytes() const {
    uint64_t sum = 0;
    for (size_t i = 0; i < links_.size(); ++i) sum += bytes_of(i);
    return sum;
  }

  void require_disk_space() const {
    const uint64_t needed = total_bytes(), free = free_disk_bytes(folder_);
    require<DiskFullError>(needed <= free, "cannot export to ", folder_.string(), ": it needs ",
                           format_bytes(static_cast<double>(needed)), " and ", format_bytes(static_cast<double>(free)),
                           " are free on that disk");
  }

  // The links of each file, as indices.
  std::vector<std::vector<size_t>> division() const {
    std::vector<std::vector<size_t>> files(1);
    uint64_t bytes = 0;
    for (size_t i = 0; i < links_.size(); ++i) {
      const uint64_t own = bytes_of(i);
      if (!files.back().empty() && bytes + own > how_.shard_bytes) {
        files.emplace_back();
        bytes = 0;
      }
      files.back().push_back(i);
      bytes += own;
    }
    return files;
  }

  static std::string file_name(size_t file, size_t files) {
    if (files == 1) return kHfWeights;
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", file + 1, files);
    return name;
  }

  // The tensors of a file in the order of the model. If any is quantised, wide elements come first and scales after all
  // codes, so that each tensor is aligned to its elements; float8 codes always fill whole words.
  std::vector<Item> items_of_file(const std::vector<size_t>& links) const {
    std::vector<Item> items;
    for (const size_t i : links)
      for (Item& item : items_of(i)) items.push_back(std::move(item));
    if (!quantiser_) return items;
    std::ranges::stable_sort(items, {}, [](const Item& item) {
      const int64_t width = stored_element_bytes(item.info.dtype, item.info.name);
      return std::pair(item.info.dtype == "F8_E4M3" ? -4 : -width, item.role == Role::scales);
    });
    return items;
  }

  // Returns the names of the file's tensors.
  std::vector<std::string> write_file(const std::string& name, const std::vector<size_t>& links) {
    const std::vector<Item> items = items_of_file(links);
    std::vector<StoredTensor> order;
    std::vector<std::string> names;
    for (const Item& item : items) {
      order.push_back(item.info);
      names.push_back(item.info.name);
    }
    StoredWriter writer(folder_ / name, order);
    for (const Item& item : items) write_item(writer, item);
    writer.finish();
    return names;
  }

  void write_item(StoredWriter& writer, const Item& item) {
    const Link& link = links_[item.link];
    switch (item.role) {
      case Role::plain:
        return write_tensor(writer, link);
      case Role::before:
        return write_part(writer, item, quantiser_->bytes_before(link));
      case Role::codes:
        return write_codes(writer, item);
      case Role::scales:
        write_part(writer, item, scales_.at(item.link));
        scales_.erase(item.link);
    }
  }

  void write_part(StoredWriter& writer, const Item& item, const std::vector<std::byte>& bytes) {
    writer.write(bytes.data(), bytes.size());
    account_.add(links_[item.link], item.info, hash_hex(bytes.data(), bytes.size()));
  }

  // The inputs of a link's matrix, unless its rows are not whole rows of Witan's matrices. Matrices that the folder has
  // joined read the same inputs.
  std::shared_ptr<const ErrorFeedback> feedback_of(const Link& link) const {
    if (!how_.feedback) return nullptr;
    const int64_t K = link.shape.last();
    const auto has_whole_rows = [&](const SharedBox& piece) {
      return piece.to.strides[3] == 1 && piece.from.strides[3] == 1 && piece.sizes[3] % K == 0 &&
             piece.to.first % K == 0 && piece.from.first % K == 0;
    };
    if (!std::ranges::all_of(link.pieces, has_whole_rows)) return nullptr;
    const SharedBox::Side& from = link.pieces.front().from;
    const Shape& stack = shapes_.at(from.name);
    return how_.feedback(from.name, stack.dims() == 3 ? from.first / (stack[1] * stack[2]) : 0);
  }

  // Scales are kept until their place in the file is reached.
  void write_codes(StoredWriter& writer, const Item& item) {
    const Link& link = links_[item.link];
    account_.hold(link);
    const int64_t row = link.shape.last(), most = quantiser_->rows_of_stretch(link) * row;
    std::vector<float> values;
    std::vector<std::byte> codes, &scales = scales_[item.link];
    RoundingError error;
    Hasher hasher;
    const std::shared_ptr<const ErrorFeedback> feedback = feedback_of(link);
    if (how_.feedback && !feedback) account_.ledger.uncalibrated.push_back(link.name);
    for (int64_t first = 0; first < link.elements(); first += most) {
      values.resize(static_cast<size_t>(std::min(most, link.elements() - first)));
      gather(link, first, static_cast<int64_t>(values.size()), Element::f32,
             reinterpret_cast<std::byte*>(values.data()),
             [&](const std::string& name) { return weights_.whole(name); });
      require_quantisable(values, link.name, quantiser_->name());
      codes.clear();
      error += quantiser_->quantise(link, values, pool_, codes, scales, feedback.get());
      writer.write(codes.data(), codes.size());
      hasher.update(codes.data(), codes.size());
    }
    account_.add(link, item.info, hasher.hex());
    account_.add_error(link, quantiser_->name(), static_cast<int64_t>(bytes_of(item.link)), error);
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
  const std::vector<Link> links_;
  const std::optional<HfQuantiser> quantiser_;
  const std::map<std::string, Shape> shapes_;        // of the checkpoint's weights
  std::map<size_t, std::vector<std::byte>> scales_;  // by link
  ExportAccount account_{weights_};
  ThreadPool pool_{quantiser_ ? usable_cores() : 1};
};

}  // namespace

Ledger export_weights(CheckpointWeights& weights, const HfExport& how, const fs::path& folder) {
  return HfExporter(weights, how, folder).run();
}

std::string quantization_config(const CheckpointWeights& weights, const HfExport& how) {
  const auto quantiser = quantiser_for(weights, how, folder_links(weights, how));
  return quantiser ? quantiser->config() : "";
}

}  // namespace witan
