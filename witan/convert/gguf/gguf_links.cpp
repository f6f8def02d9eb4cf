#include <algorithm>
#include <set>
#include <span>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/gguf/gguf_config.h"
#include "witan/convert/joined_rows.h"

namespace witan {
namespace {

// Splits "layers.12.mlp_norm.weight" into "blk.12." and "mlp_norm.weight"; a name outside of layers into "" and itself.
// Modules of multi-token prediction are blocks behind the model's `layers`.
std::pair<std::string, std::string_view> block_and_rest(std::string_view name, int64_t layers) {
  const auto [number, rest] = layer_and_rest(name, layers);
  if (number < 0) return {"", rest};
  return {cat("blk.", number, "."), rest};
}

// Visits the file's tensors that a rule uses: name, shape and piece.
class GgufLinker {
 public:
  GgufLinker(const Architecture& architecture, const ModelConfig& model, LatentStorage latent,
             const std::vector<ModelTensor>& tensors)
      : architecture_(architecture), model_(model), latent_(latent), rows_(rows_by_name(tensors)) {}

  template <class Visit>
  void each(const ModelTensor& tensor, const Visit& visit) const {
    const auto [block, rest] = block_and_rest(tensor.name, model_.num_layers);
    bool found = tensor.buffer;
    for (const auto& table : architecture_.gguf.rules)
      for (const GgufRule& rule : table) {
        if (rule.witan != rest || (rule.latent != LatentStorage::any && rule.latent != latent_)) continue;
        found = true;
        apply(rule, tensor, block + std::string(rule.other), visit);
      }
    require<ConfigError>(found, "this model has ", tensor.name, " ", tensor.shape, ", which llama.cpp's model of type ",
                         architecture_.model_type,
                         " has no place for: it cannot be written as GGUF; export --format hf");
  }

 private:
  template <class Visit>
  void apply(const GgufRule& rule, const ModelTensor& tensor, const std::string& other, const Visit& visit) const {
    SharedBox piece;
    piece.to.name = tensor.name;
    piece.from.name = other;
    Shape shape;
    if (rule.rows == GgufRows::latent_keys || rule.rows == GgufRows::latent_values)
      shape = latent(rule.rows, piece);
    else
      shape = plain(rule, tensor, piece);
    piece.values = map_of(rule.values);
    piece.normalise();
    visit(other, shape, piece);
  }

  Shape plain(const GgufRule& rule, const ModelTensor& tensor, SharedBox& piece) const {
    const int rows_dim = tensor.experts ? 1 : 0;
    const bool vector = tensor.shape.dims() == rows_dim + 1;
    const int64_t experts = tensor.experts ? tensor.shape[0] : 1, in = vector ? 1 : tensor.shape[rows_dim + 1];
    const int64_t rows = has_vocabulary_rows(tensor.name) ? model_.vocab_size : tensor.shape[rows_dim];
    const int64_t own = rows / rule.parts;
    const JoinedRows joined(tensor.name, rule.witan, own, rule.joined, group_count(rule.groups, model_), rows_);
    const int64_t out = joined.all * rule.other_parts;
    piece.sizes = {experts, joined.groups, joined.own, in};
    piece.to.strides = {rows * in, joined.own * in, in, 1};
    piece.from.strides = {out * in, joined.of_group() * in, in, 1};
    piece.to.first = rule.part * own * in;
    piece.from.first = (rule.other_part * own + joined.first) * in;
    if (rule.rows == GgufRows::rope_pairs) {
      const int64_t channels = model_.attention.qk_head_dim(model_.hidden_size), half = channels / 2;
      piece.sizes = {rows / channels, 2, half, in};
      piece.to.strides = {channels * in, half * in, in, 1};
      piece.from.strides = {channels * in, in, 2 * in, 1};
    }
    if (rule.rows == GgufRows::tiled_heads || rule.rows == GgufRows::tiled_columns)
      tile_heads(rule.rows, own, in, piece);
    if (rule.shape == GgufShape::column) return {out, 1};
    if (rule.shape == GgufShape::heads) return {1, 1, out, 1};
    if (rule.shape == GgufShape::taps) return {1, out, 1, in};
    if (rule.shape == GgufShape::state_groups)
      return {model_.mamba.mamba_num_groups, out / model_.mamba.mamba_num_groups};
    Shape shape;
    if (tensor.experts) shape.append(experts);
    shape.append(out);
    if (!vector) shape.append(in);
    return shape;
  }

  // Value head h reads key head h / r of G: heads (key head, which of its r) lie in the file as (which, key head).
  void tile_heads(GgufRows rows, int64_t own, int64_t in, SharedBox& piece) const {
    const LinearAttentionConfig& delta = model_.linear_attention;
    const int64_t G = delta.linear_num_key_heads, H = delta.linear_num_value_heads, r = H / G;
    if (rows == GgufRows::tiled_heads) {  // [H dv, in]
      const int64_t channels = own / H * in;
      piece.sizes = {1, G, r, channels};
      piece.to.strides = {0, r * channels, channels, 1};
      piece.from.strides = {0, channels, G * channels, 1};
    } else {  // [own, H dv]
      const int64_t channels = in / H;
      piece.sizes = {own, G, r, channels};
      piece.to.strides = {in, r * channels, channels, 1};
      piece.from.strides = {in, channels, G * channels, 1};
    }
  }

  // From the file's values to Witan's.
  static ValueMap map_of(GgufValues values) {
    if (values == GgufValues::plus_one) return ValueMap::minus_one;
    return values == GgufValues::minus_exp ? ValueMap::log_of_minus : ValueMap::same;
  }

  // The keys of kv_b_proj [heads * (nope + value), rank] as [heads, rank, nope], or its values as [heads, value, rank].
  Shape latent(GgufRows rows, SharedBox& piece) const {
    const AttentionConfig& attention = model_.attention;
    const int64_t heads = attention.num_attention_heads, nope = attention.latent_qk_head_dim,
                  value = attention.value_head_dim(model_.hidden_size), rank = attention.kv_lora_rank;
    const bool keys = rows == GgufRows::latent_keys;
    const int64_t own = keys ? nope : value;
    piece.sizes = {1, heads, own, rank};
    piece.to.strides = {0, (nope + value) * rank, rank, 1};
    piece.to.first = keys ? 0 : nope * rank;
    piece.from.strides = {0, own * rank, keys ? 1 : rank, keys ? own : 1};
    return keys ? Shape{heads, rank, own} : Shape{heads, own, rank};
  }

  const Architecture& architecture_;
  const ModelConfig& model_;
  const LatentStorage latent_;
  const RowsByName rows_;
};

}  // namespace

std::vector<Link> gguf_links(const Architecture& architecture, const ModelConfig& model, LatentStorage latent,
                             const std::vector<ModelTensor>& tensors) {
  const GgufLinker linker(architecture, model, latent, tensors);
  std::vector<Link> links;
  for (const ModelTensor& tensor : tensors) {
    Link link{tensor.name, tensor.shape, {}, 0};
    if (has_vocabulary_rows(tensor.name)) link.padding = (tensor.shape[0] - model.vocab_size) * tensor.shape[1];
    linker.each(tensor,
                [&](const std::string&, const Shape&, const SharedBox& piece) { link.pieces.push_back(piece); });
    if (link.pieces.empty()) continue;
    check_cover(link, architecture.model_type);
    links.push_back(std::move(link));
  }
  return links;
}

std::vector<std::pair<std::string, Shape>> gguf_tensors(const Architecture& architecture, const ModelConfig& model,
                                                        LatentStorage latent, const std::vector<ModelTensor>& tensors) {
  const GgufLinker linker(architecture, model, latent, tensors);
  std::vector<std::pair<std::string, Shape>> others;
  std::set<std::string> seen;
  for (const ModelTensor& tensor : tensors)
    linker.each(tensor, [&](const std::string& name, const Shape& shape, const SharedBox&) {
      if (seen.insert(name).second) others.emplace_back(name, shape);
    });
  return others;
}

bool is_always_f32(std::string_view name, int dims) {
  return dims <= 1 || !name.ends_with(".weight") || name.ends_with("_norm.weight") ||
         name.ends_with(".ffn_gate_inp.weight") || name.ends_with(".ffn_gate_inp_shexp.weight") ||
         name.find(".ssm_conv1d") != std::string_view::npos || name.ends_with(".shortconv.conv.weight") ||
         name.ends_with(".indexer.proj.weight") || name.ends_with("_compressor_ape.weight") ||
         name.ends_with("hc_attn_fn.weight") || name.ends_with("hc_ffn_fn.weight") ||
         name.ends_with("output_hc_fn.weight") || name == "position_embd.weight";
}

}  // namespace witan
