#include "witan/convert/gguf/gguf_export.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/base/text.h"
#include "witan/convert/elements/block_codec.h"
#include "witan/convert/export_account.h"
#include "witan/convert/gguf/gguf_config.h"

namespace witan {
namespace {

constexpr int64_t kGgufPiece = int64_t{2} << 20;  // elements that are converted at a time, a multiple of every block

class GgufExporter {
 public:
  GgufExporter(CheckpointWeights& weights, const GgufExport& how, const fs::path& path)
      : weights_(weights), how_(how), path_(path), model_tensors_(tensors_of(weights.model())) {
    metadata_ = write_gguf_config(*how.architecture, weights.model(), how.positions);
    for (const auto& [key, value] : how.more.values()) metadata_.put(key, value);
    const auto order = gguf_tensors(*how.architecture, weights.model(), LatentStorage::divided, model_tensors_);
    links_ =
        inverse_links(gguf_links(*how.architecture, weights.model(), LatentStorage::divided, model_tensors_), order);
    if (gguf_copies_head(*how.architecture, weights.model())) copy_head();
    factors_ = rope_factors(weights.model());
    if (!factors_.empty())
      tensors_.push_back({kRopeFactors, {static_cast<int64_t>(factors_.size())}, ggml_type("F32")});
    for (const Link& link : links_) {
      GgufTensor tensor{link.name, {}, type_of(link)};
      for (int dim = 0; dim < link.shape.dims(); ++dim) tensor.dims.push_back(link.shape[dim]);
      tensors_.push_back(std::move(tensor));
    }
    metadata_.put_u32("general.file_type", gguf_file_type(most_common_type(), how.mixed));
    account_.ledger.from = "witan";
    account_.ledger.to = "gguf";
    account_.ledger.architecture = how.architecture->model_type;
    account_.ledger.style.storage = default_storage(*how.architecture);
  }

  Ledger run(const std::function<void(const Ledger&)>& before_commit) {
    const std::string header = gguf_header(metadata_, tensors_);
    require_disk_space(header.size());
    AtomicFile file(path_);
    file.write(header);
    if (!factors_.empty()) write_factors(file);
    for (size_t i = 0; i < links_.size(); ++i) {
      write_tensor(file, links_[i], *tensors_[i + (factors_.empty() ? 0 : 1)].type);
      file.write(std::string(gguf_padding(file.written()), '\0'));
    }
    account_.close();
    if (before_commit) before_commit(account_.ledger);
    commit(file);
    return std::move(account_.ledger);
  }

 private:
  void copy_head() {
    Link copy = *std::ranges::find(links_, kGgufEmbedding, &Link::name);
    copy.name = kGgufHead;
    for (SharedBox& piece : copy.pieces) piece.to.name = copy.name;
    links_.push_back(std::move(copy));
  }

  // If the last step fails, making the folder durable, a new file is removed, so that the same command can be repeated.
  void commit(AtomicFile& file) const {
    const bool is_new = !fs::exists(path_);
    try {
      file.commit();
    } catch (...) {
      std::error_code ignored;
      if (is_new) fs::remove(path_, ignored);
      throw;
    }
  }

  const GgmlType* type_of(const Link& link) const {
    if (is_table_of_experts(link.name)) return ggml_type("I32");
    const ModelConfig& model = weights_.model();
    const Element own = *element_of(model.compute_dtype());
    const auto known = how_.types.find(link.name);
    if (how_.type || known == how_.types.end()) {
      const GgufTypes types{how_.type.value_or(own), how_.mixed, model.num_layers, !has_head()};
      require<ConfigError>(types.type != Element::f64,
                           "the model's weights are float64, which llama.cpp cannot compute "
                           "with: give the type to round them to (--dtype float32)");
      return ggml_type(name_of(gguf_type_of(types, link.name, link.shape)));
    }
    const Element was = element_from_name(known->second, link.name);
    return ggml_type(name_of(type_for_rows(is_repeatable(was) ? was : plain_type_of(was), link.shape.last())));
  }
  bool has_head() const { return std::ranges::find(links_, kGgufHead, &Link::name) != links_.end(); }

  // Quantising again gives the same bytes for Q8_0, but not for other blocks.
  static bool is_repeatable(Element type) { return type == Element::q8_0 || block_codec(type) == nullptr; }
  static Element plain_type_of(Element type) { return holds(Element::bf16, type) ? Element::bf16 : Element::f32; }

  std::string_view most_common_type() const {
    std::map<std::string_view, int64_t> elements;
    for (const GgufTensor& tensor : tensors_) elements[tensor.type->name] += tensor.elements();
    return std::ranges::max_element(elements, {}, [](const auto& one) { return one.second; })->first;
  }

  void require_disk_space(uint64_t header) const {
    uint64_t needed = header;
    for (const GgufTensor& tensor : tensors_) needed += tensor.bytes() + gguf_padding(tensor.bytes());
    const uint64_t free = free_disk_bytes(fs::absolute(path_).parent_path());
    require<DiskFullError>(needed <= free, "cannot export to ", path_.string(), ": it needs ",
                           format_bytes(static_cast<double>(needed)), " and ", format_bytes(static_cast<double>(free)),
                           " are free on that disk");
  }

  void write_factors(AtomicFile& file) {
    const size_t bytes = factors_.size() * sizeof factors_[0];
    file.write(factors_.data(), bytes);
    file.write(std::string(gguf_padding(file.written()), '\0'));
    account_.ledger.target.push_back({kRopeFactors,
                                      "F32",
                                      Shape{static_cast<int64_t>(factors_.size())},
                                      hash_hex(factors_.data(), bytes),
                                      {},
                                      "computed of the keys of Llama 3.1's positions"});
  }

  void write_tensor(AtomicFile& file, const Link& link, const GgmlType& type) {
    account_.hold(link);
    const Element element = element_from_name(type.name, link.name);
    const BlockCodec* codec = block_codec(element);
    const Element gathered = codec ? Element::f32 : element;
    std::vector<std::byte> piece, quantised;
    RoundingError error;
    Hasher hasher;
    for (int64_t first = 0; first < link.elements(); first += kGgufPiece) {
      const int64_t count = std::min(kGgufPiece, link.elements() - first);
      piece.resize(static_cast<size_t>(count * size_of(gathered)));
      gather(link, first, count, gathered, piece.data(), [&](const std::string& name) { return weights_.whole(name); });
      if (codec) {
        const std::span values(reinterpret_cast<const float*>(piece.data()), static_cast<size_t>(count));
        require_quantisable(values, link.name, name_of(element));
        quantised.resize(static_cast<size_t>(count / codec->block * codec->bytes));
        error += quantise_blocks(*codec, values, quantised.data(), pool_);
      }
      const auto& bytes = codec ? quantised : piece;
      file.write(bytes.data(), bytes.size());
      hasher.update(bytes.data(), bytes.size());
    }
    account_.add(link, type.name, hasher.hex());
    if (codec) account_.add_error(link, type.name, link.elements() / codec->block * codec->bytes, error);
  }

  CheckpointWeights& weights_;
  const GgufExport& how_;
  const fs::path path_;
  const std::vector<ModelTensor> model_tensors_;
  GgufMetadata metadata_;
  std::vector<Link> links_;
  std::vector<float> factors_;  // divisors of Llama 3.1's frequencies, the file's first tensor
  std::vector<GgufTensor> tensors_;
  ExportAccount account_{weights_};
  ThreadPool pool_{usable_cores()};
};

}  // namespace

Ledger export_gguf(CheckpointWeights& weights, const GgufExport& how, const fs::path& file,
                   const std::function<void(const Ledger&)>& before_commit) {
  return GgufExporter(weights, how, file).run(before_commit);
}

}  // namespace witan
