#include "witan/convert/megatron/megatron_export.h"

#include <algorithm>
#include <set>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/export_account.h"
#include "witan/convert/megatron/megatron_args.h"
#include "witan/convert/megatron/megatron_torch_writer.h"

namespace witan {
namespace {

constexpr int64_t kMegatronPiece = int64_t{8} << 20;    // bytes that are converted at a time
constexpr uint64_t kMegatronChunk = uint64_t{1} << 30;  // bytes of a chunk, unless one row has more
constexpr const char* kDataFile = "__0_0.distcp";
constexpr std::string_view kDecoder = "decoder.layers.";
constexpr std::string_view kOfMetadata = "torch.distributed.checkpoint.metadata";

// Megatron-LM builds Transformer Engine's layers, in which norms are part of the linear layers after them.
std::string with_norms_fused(std::string name, const ModelConfig& model, const LayerSpec& layer) {
  const bool latent = model.attention.multi_latent_attention;
  const auto fuse = [&](std::string_view apart, std::string_view fused) {
    if (const size_t at = name.find(apart); at != std::string::npos) name.replace(at, apart.size(), fused);
  };
  if (std::holds_alternative<Mamba2Spec>(layer.mixer))
    fuse("input_layernorm.", "mixer.in_proj.layer_norm_");
  else if (std::holds_alternative<GatedDeltaSpec>(layer.mixer))
    fuse("input_layernorm.", "self_attention.in_proj.layer_norm_");
  else if (!latent)
    fuse("input_layernorm.", "self_attention.linear_qkv.layer_norm_");
  if (latent) fuse("self_attention.q_layernorm.", "self_attention.linear_q_up_proj.layer_norm_");
  if (latent) fuse("self_attention.kv_layernorm.", "self_attention.linear_kv_up_proj.layer_norm_");
  if (!layer.moe) fuse("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_");
  return name;
}

// Tensors that are float32 beside 16-bit matrices, whatever dtype Megatron-LM trains them in.
bool stays_wide(std::string_view name) {
  constexpr std::string_view kWide[] = {
      "router.expert_bias", ".A_log", ".D", ".dt_bias", "mixer.norm.weight", "self_attention.out_norm.weight"};
  return std::ranges::any_of(kWide, [&](std::string_view end) { return name.ends_with(end); });
}

// The layer whose extra state is saved beside this tensor: "mixer.in_proj." of "mixer.in_proj.weight.z".
std::string module_of(const std::string& name) {
  for (const std::string_view divided : {".in_proj.weight.", ".conv1d.weight.", ".conv1d.bias."})
    if (const size_t at = name.find(divided); at != std::string::npos)
      return name.substr(0, name.find('.', at + 1) + 1);
  return name.substr(0, name.rfind('.') + 1);
}

std::string_view name_in_torch(Element element) {
  switch (element) {
    case Element::f64:
      return "float64";
    case Element::f32:
      return "float32";
    case Element::f16:
      return "float16";
    default:
      return "bfloat16";
  }
}

class MegatronExporter {
 public:
  MegatronExporter(CheckpointWeights& weights, const MegatronExport& how, const fs::path& folder)
      : weights_(weights), how_(how), folder_(folder), layers_(weights.model().layers()) {
    const ModelConfig& model = weights.model();
    arguments_ = write_megatron_arguments(model, how.positions);
    const auto tensors = tensors_of(model);
    links_ = inverse_links(link_megatron(model, tensors, model.vocab_size),
                           megatron_tensors(model, tensors, model.vocab_size));
    alike_ = !model.mamba.any() && !model.linear_attention.any();
    for (const LayerSpec& layer : layers_) alike_ = alike_ && layer.moe == layers_.front().moe;
    account_.ledger.from = "witan";
    account_.ledger.to = account_.ledger.architecture = kMegatronFormat;
  }

  Ledger run() {
    require_disk_space();
    const fs::path to = folder_ / "release";
    fs::create_directory(to);
    AtomicFile data(to / kDataFile);
    for (const Link& link : links_) write_tensor(data, link);
    write_state_of_layers(data);
    data.commit();
    write_file_atomically(to / ".metadata", metadata());
    write_common(to);
    write_file_atomically(to / "metadata.json",
                          "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1, \"common_backend\": "
                          "\"torch\", \"common_backend_version\": 1}");
    write_file_atomically(folder_ / "latest_checkpointed_iteration.txt", "release");
    account_.close();
    return std::move(account_.ledger);
  }

 private:
  struct StoredPiece {
    Shape offsets, sizes;
    uint64_t at = 0, length = 0;
  };
  struct StoredName {
    Element element = Element::f32;
    Shape shape;
    std::vector<StoredPiece> pieces;
  };

  Element dtype_of(const Link& link) const {
    if (how_.dtype) return *how_.dtype;
    const Element model = *element_of(weights_.model().compute_dtype());
    return model != Element::f64 && stays_wide(link.name) ? Element::f32 : model;
  }

  void require_disk_space() const {
    uint64_t needed = 0;
    for (const Link& link : links_) needed += static_cast<uint64_t>(link.elements() * size_of(dtype_of(link)));
    const uint64_t free = free_disk_bytes(folder_);
    require<DiskFullError>(needed <= free, "cannot export to ", folder_.string(), ": it needs ",
                           format_bytes(static_cast<double>(needed)), " and ", format_bytes(static_cast<double>(free)),
                           " are free on that disk");
  }

  // The name in the checkpoint, and the layer if all layers are alike and share one tensor; otherwise -1.
  std::pair<std::string, int64_t> stored_name(const Link& link) const {
    if (!link.name.starts_with(kDecoder)) return {link.name, -1};
    const size_t dot = link.name.find('.', kDecoder.size());
    const int64_t layer = std::stoll(link.name.substr(kDecoder.size(), dot - kDecoder.size()));
    const std::string rest =
        with_norms_fused(link.name.substr(dot + 1), weights_.model(), layers_[static_cast<size_t>(layer)]);
    if (alike_) return {cat(kDecoder, rest), layer};
    return {cat(kDecoder, layer, '.', rest), -1};
  }

  void write_tensor(AtomicFile& data, const Link& link) {
    const auto [name, layer] = stored_name(link);
    const Element element = dtype_of(link);
    StoredName& stored = stored_[name];
    stored.element = element;
    Shape lead, lead_at;  // the sizes and offsets of the dim of layers
    if (layer >= 0) {
      lead.append(1);
      lead_at.append(layer);
    }
    const auto joined = [](Shape first, const Shape& rest) {
      for (int dim = 0; dim < rest.dims(); ++dim) first.append(rest[dim]);
      return first;
    };
    stored.shape = joined(layer >= 0 ? Shape{weights_.model().num_layers} : Shape{}, link.shape);
    Hasher hasher;
    const int64_t rows = link.shape[0], of_row = link.elements() / std::max<int64_t>(rows, 1);
    const auto row_bytes = static_cast<uint64_t>(of_row * size_of(element));
    const auto at_once = static_cast<int64_t>(std::max<uint64_t>(kMegatronChunk / std::max<uint64_t>(row_bytes, 1), 1));
    for (int64_t row = 0; row < rows; row += at_once) {
      const Shape sizes = link.shape.with(0, std::min(at_once, rows - row));
      Shape offsets;
      for (int dim = 0; dim < link.shape.dims(); ++dim) offsets.append(dim == 0 ? row : 0);
      StoredPiece piece{joined(lead_at, offsets), joined(lead, sizes), data.written(), 0};
      require<ConfigError>(static_cast<uint64_t>(sizes.elements() * size_of(element)) <= TorchWriter::kMostTensorBytes,
                           link.name, ' ', link.shape, " has rows that are too large for a file of PyTorch's");
      piece.length = TorchWriter(data).tensor(element, piece.sizes, [&](const TorchWriter::Put& put) {
        write_elements(link, row * of_row, sizes.elements(), element, put, hasher);
      });
      stored.pieces.push_back(std::move(piece));
    }
    account_.add(link, name_of(element), hasher.hex());
    weights_.release();
  }

  void write_elements(const Link& link, int64_t first, int64_t count, Element element, const TorchWriter::Put& put,
                      Hasher& hasher) {
    const int64_t width = size_of(element), most = kMegatronPiece / width;
    std::vector<std::byte> piece(static_cast<size_t>(std::min(most, count) * width));
    for (int64_t done = 0; done < count; done += most) {
      const int64_t now = std::min(most, count - done);
      gather(link, first + done, now, element, piece.data(),
             [&](const std::string& name) { return weights_.whole(name); });
      put(piece.data(), static_cast<size_t>(now * width));
      hasher.update(piece.data(), static_cast<size_t>(now * width));
    }
  }

  // Transformer Engine's layers load an extra state, which only FP8 needs. All of them get [None].
  void write_state_of_layers(AtomicFile& data) {
    PickleWriter none;
    none.empty_list();
    none.mark();
    none.none();
    none.append_all();
    state_at_ = data.written();
    state_length_ = TorchWriter(data).pickle(none.finish());
    const auto add = [&](const std::string& of, int64_t shards) {
      for (int64_t shard = 0; shard < shards; ++shard)
        states_.insert(cat(of, "_extra_state/shard_", shard, '_', shards));
    };
    const int64_t layers = alike_ ? weights_.model().num_layers : 1, experts = weights_.model().moe.num_experts;
    for (const auto& [name, stored] : stored_) {
      const std::string module = module_of(name);
      const bool of_layer = name.starts_with(kDecoder);
      if (name.find(".experts.experts.") != std::string::npos)
        for (int64_t layer = 0; layer < layers; ++layer)
          for (int64_t expert = 0; expert < experts; ++expert)
            states_.insert(
                cat(module, "_extra_state/shard_",
                    alike_ ? cat(layer, '.', expert, '_', layers, '.', experts) : cat(expert, '_', experts)));
      else
        add(module, of_layer ? layers : 1);
      constexpr std::string_view kProjection = "self_attention.linear_proj.weight";
      if (name.ends_with(kProjection))
        add(cat(name.substr(0, name.size() - kProjection.size()), "self_attention.core_attention."), layers);
    }
  }

  // torch.distributed.checkpoint's description of the checkpoint.
  std::string metadata() const {
    PickleWriter out;
    out.global(kOfMetadata, "Metadata");
    out.mark();
    out.empty_dict();
    out.mark();
    for (const auto& [name, stored] : stored_) {
      out.text(name);
      describe(out, stored);
    }
    for (const std::string& state : states_) {
      out.text(state);
      out.global(kOfMetadata, "BytesStorageMetadata");
      out.empty_tuple();
      out.call();
    }
    out.set_items();
    out.none();
    out.empty_dict();
    out.mark();
    for (const auto& [name, stored] : stored_)
      for (size_t i = 0; i < stored.pieces.size(); ++i) {
        const StoredPiece& piece = stored.pieces[i];
        place(out, name, &piece.offsets, piece.at, piece.length);
      }
    for (const std::string& state : states_) place(out, state, nullptr, state_at_, state_length_);
    out.set_items();
    out.tuple();
    out.call();
    return out.finish();
  }

  static void describe(PickleWriter& out, const StoredName& stored) {
    out.global(kOfMetadata, "TensorStorageMetadata");
    out.mark();
    out.global(kOfMetadata, "TensorProperties");
    out.mark();
    out.global("torch", name_in_torch(stored.element));
    out.tuple();
    out.call();
    out.torch_size(stored.shape);
    out.empty_list();
    out.mark();
    for (const StoredPiece& piece : stored.pieces) {
      out.global(kOfMetadata, "ChunkStorageMetadata");
      out.mark();
      out.torch_size(piece.offsets);
      out.torch_size(piece.sizes);
      out.tuple();
      out.call();
    }
    out.append_all();
    out.tuple();
    out.call();
  }

  static void place(PickleWriter& out, const std::string& name, const Shape* offsets, uint64_t at, uint64_t length) {
    out.global(kOfMetadata, "MetadataIndex");
    out.mark();
    out.text(name);
    if (offsets) out.torch_size(*offsets);
    out.tuple();
    out.call();
    out.global("torch.distributed.checkpoint.filesystem", "_StorageInfo");
    out.mark();
    out.text(kDataFile);
    out.integer(static_cast<int64_t>(at));
    out.integer(static_cast<int64_t>(length));
    out.tuple();
    out.call();
  }

  // The model's arguments, which Megatron-LM reads with --use-checkpoint-args.
  void write_common(const fs::path& to) const {
    PickleWriter out;
    out.empty_dict();
    out.mark();
    out.text("args");
    out.arguments(arguments_);
    out.text("checkpoint_version");
    out.number(3);
    out.text("iteration");
    out.integer(0);
    out.set_items();
    AtomicFile common(to / "common.pt");
    TorchWriter(common).pickle(out.finish());
    common.commit();
  }

  CheckpointWeights& weights_;
  const MegatronExport& how_;
  const fs::path folder_;
  const std::vector<LayerSpec> layers_;
  std::vector<std::pair<std::string, MegatronValue>> arguments_;
  std::vector<Link> links_;
  bool alike_ = true;  // all layers have the same tensors
  std::map<std::string, StoredName> stored_;
  std::set<std::string> states_;
  uint64_t state_at_ = 0, state_length_ = 0;
  ExportAccount account_{weights_};
};

}  // namespace

Ledger export_megatron(CheckpointWeights& weights, const MegatronExport& how, const fs::path& folder) {
  return MegatronExporter(weights, how, folder).run();
}

}  // namespace witan
