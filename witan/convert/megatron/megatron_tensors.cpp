#include "witan/convert/megatron/megatron_tensors.h"

#include <charconv>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

// Transformer Engine fuses norms into the linear layers after them.
std::string with_norms_apart(std::string name) {
  constexpr std::pair<std::string_view, std::string_view> kFused[] = {
      {"self_attention.linear_qkv.layer_norm_", "input_layernorm."},
      {"self_attention.in_proj.layer_norm_", "input_layernorm."},
      {"mixer.in_proj.layer_norm_", "input_layernorm."},
      {"self_attention.linear_q_up_proj.layer_norm_", "self_attention.q_layernorm."},
      {"self_attention.linear_kv_up_proj.layer_norm_", "self_attention.kv_layernorm."},
      {"mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm."}};
  for (const auto& [fused, apart] : kFused)
    if (const size_t at = name.find(fused); at != std::string::npos) name.replace(at, fused.size(), apart);
  return name;
}

Shape without_first(const Shape& shape) {
  Shape rest;
  for (int dim = 1; dim < shape.dims(); ++dim) rest.append(shape[dim]);
  return rest;
}

}  // namespace

void MegatronTensors::add(const std::string& full_name, const std::string& dtype, const Shape& shape,
                          MegatronChunk chunk) {
  std::string_view name = full_name;
  for (const std::string_view prefix : {"module.", "model."})
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  if (!name.starts_with(kMegatronDecoderLayers) || leading_number(name.substr(kMegatronDecoderLayers.size())) ||
      shape.dims() < 2 || chunk.sizes.dims() != shape.dims() || chunk.offsets.dims() != shape.dims()) {
    add_to_layer(std::string(name), dtype, shape, std::move(chunk));
    return;
  }
  const int64_t layers = chunk.sizes[0];
  require<CheckpointError>(layers <= (1 << 14), where_, ": \"", clipped(name), "\" is of too many layers");
  for (int64_t layer = 0; layer < layers; ++layer) {
    const size_t bytes = chunk.bytes.size() / static_cast<size_t>(layers);
    add_to_layer(cat(kMegatronDecoderLayers, chunk.offsets[0] + layer, '.', name.substr(kMegatronDecoderLayers.size())),
                 dtype, without_first(shape),
                 {without_first(chunk.offsets), without_first(chunk.sizes),
                  chunk.bytes.subspan(static_cast<size_t>(layer) * bytes, bytes)});
  }
}

void MegatronTensors::add_to_layer(const std::string& given, const std::string& dtype, const Shape& shape,
                                   MegatronChunk chunk) {
  const std::string name = with_norms_apart(given);
  MegatronTensor& tensor = all_[name];
  if (tensor.chunks.empty()) tensor = {name, dtype, shape, {}};
  require<CheckpointError>(tensor.dtype == dtype && tensor.shape == shape, where_, ": \"", clipped(name), "\" is ",
                           tensor.dtype, ' ', tensor.shape, " in one piece and ", dtype, ' ', shape, " in another");
  tensor.chunks.push_back(std::move(chunk));
}

void MegatronTensors::check() const {
  constexpr size_t kMostChunks = 1 << 14;
  for (const auto& entry : all_) {
    const MegatronTensor& tensor = entry.second;
    const auto fails = [&](const char* what) {
      throw CheckpointError(
          cat(where_, ": \"", clipped(tensor.name), "\" ", tensor.shape, what, ": copy the checkpoint again"));
    };
    if (tensor.chunks.size() > kMostChunks) fails(" is in too many pieces");
    int64_t elements = 0;
    for (size_t i = 0; i < tensor.chunks.size(); ++i) {
      const MegatronChunk& a = tensor.chunks[i];
      if (a.sizes.dims() != tensor.shape.dims() || a.offsets.dims() != tensor.shape.dims())
        fails(" has a piece of other dims");
      for (int dim = 0; dim < tensor.shape.dims(); ++dim)
        if (a.offsets[dim] > tensor.shape[dim] || a.sizes[dim] > tensor.shape[dim] - a.offsets[dim])
          fails(" has a piece that is not within it");
      elements += a.sizes.elements();
      for (size_t j = 0; j < i; ++j) {
        const MegatronChunk& b = tensor.chunks[j];
        bool meet = a.sizes.elements() > 0 && b.sizes.elements() > 0;
        for (int dim = 0; dim < tensor.shape.dims(); ++dim)
          meet =
              meet && a.offsets[dim] < b.offsets[dim] + b.sizes[dim] && b.offsets[dim] < a.offsets[dim] + a.sizes[dim];
        if (meet) fails(" has elements that are in two pieces");
      }
    }
    if (elements != tensor.shape.elements()) fails(" has elements that are in no piece");
  }
}

std::string megatron_note_of(std::string_view name) {
  if (name.find("_extra_state") != std::string_view::npos) return "what a layer scales FP8 by, no weight";
  if (name.starts_with("optimizer.")) return "state of the optimizer, which a run of weights alone begins anew";
  return "state of the program that wrote it, no weight";
}

std::optional<std::pair<int64_t, std::string_view>> leading_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  return std::pair(number, text.substr(static_cast<size_t>(end - text.data())));
}

}  // namespace witan
