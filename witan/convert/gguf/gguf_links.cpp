#include "witan/convert/gguf/gguf_links.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <span>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

// How the rows of one tensor stand in the other.
enum class GgufRows : uint8_t {
  same,
  rope_pairs,  // of each head the two channels that rotate together are neighbours
  latent_keys,
  latent_values,
};

// As TensorRule: names below the layer, and which rows of which tensor.
struct GgufRule {
  std::string_view witan, other;
  int part = 0, parts = 1;              // of Witan's tensor
  int other_part = 0, other_parts = 1;  // of the file's
  GgufRows rows = GgufRows::same;
};

constexpr GgufRule kGgufCommon[] = {
    {"embedding.weight", "token_embd.weight"},
    {"final_norm.weight", "output_norm.weight"},
    {"head.weight", "output.weight"},
    {"attention.o_proj.weight", "attn_output.weight"},
    {"mlp.gate_up_proj.weight", "ffn_gate.weight", 0, 2},
    {"mlp.gate_up_proj.weight", "ffn_up.weight", 1, 2},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"moe.router.weight", "ffn_gate_inp.weight"},
    {"moe.router.expert_bias", "exp_probs_b.bias"},
    {"moe.experts.gate_up_proj", "ffn_gate_exps.weight", 0, 2},
    {"moe.experts.gate_up_proj", "ffn_up_exps.weight", 1, 2},
    {"moe.experts.down_proj", "ffn_down_exps.weight"},
    {"moe.shared_experts.gate_up_proj.weight", "ffn_gate_shexp.weight", 0, 2},
    {"moe.shared_experts.gate_up_proj.weight", "ffn_up_shexp.weight", 1, 2},
    {"moe.shared_experts.down_proj.weight", "ffn_down_shexp.weight"},
};

constexpr GgufRule kGgufNorms[] = {
    {"attention_norm.weight", "attn_norm.weight"},
    {"mlp_norm.weight", "ffn_norm.weight"},
};
constexpr GgufRule kGgufPostNorms[] = {
    {"attention_norm.weight", "post_attention_norm.weight"},
    {"mlp_norm.weight", "post_ffw_norm.weight"},
};

constexpr GgufRule kGgufAttention[] = {
    {"attention.q_proj.weight", "attn_q.weight"},      {"attention.q_proj.bias", "attn_q.bias"},
    {"attention.k_proj.weight", "attn_k.weight"},      {"attention.k_proj.bias", "attn_k.bias"},
    {"attention.v_proj.weight", "attn_v.weight"},      {"attention.v_proj.bias", "attn_v.bias"},
    {"attention.q_norm.weight", "attn_q_norm.weight"}, {"attention.k_norm.weight", "attn_k_norm.weight"},
};
constexpr GgufRule kGgufPairedAttention[] = {
    {.witan = "attention.q_proj.weight", .other = "attn_q.weight", .rows = GgufRows::rope_pairs},
    {.witan = "attention.k_proj.weight", .other = "attn_k.weight", .rows = GgufRows::rope_pairs},
    {.witan = "attention.v_proj.weight", .other = "attn_v.weight"},
};

constexpr GgufRule kGgufLatent[] = {
    {"attention.q_proj.weight", "attn_q.weight"},
    {"attention.q_a_proj.weight", "attn_q_a.weight"},
    {"attention.q_a_layernorm.weight", "attn_q_a_norm.weight"},
    {"attention.q_b_proj.weight", "attn_q_b.weight"},
    {"attention.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"},
    {"attention.kv_a_layernorm.weight", "attn_kv_a_norm.weight"},
};
constexpr GgufRule kGgufJoinedLatent[] = {{"attention.kv_b_proj.weight", "attn_kv_b.weight"}};
constexpr GgufRule kGgufDividedLatent[] = {
    {.witan = "attention.kv_b_proj.weight", .other = "attn_k_b.weight", .rows = GgufRows::latent_keys},
    {.witan = "attention.kv_b_proj.weight", .other = "attn_v_b.weight", .rows = GgufRows::latent_values},
};

constexpr GgufRule kGgufOfGptOss[] = {
    {"attention_norm.weight", "attn_norm.weight"},
    {"mlp_norm.weight", "post_attention_norm.weight"},
    {"attention.o_proj.bias", "attn_output.bias"},
    {"attention.sinks", "attn_sinks.weight"},
    {"moe.router.bias", "ffn_gate_inp.bias"},
    {"moe.experts.gate_up_proj_bias", "ffn_gate_exps.bias", 0, 2},
    {"moe.experts.gate_up_proj_bias", "ffn_up_exps.bias", 1, 2},
    {"moe.experts.down_proj_bias", "ffn_down_exps.bias"},
};

constexpr GgufRule kGgufOfGpt2[] = {
    {"position_embedding.weight", "position_embd.weight"},
    {"final_norm.bias", "output_norm.bias"},
    {"attention_norm.bias", "attn_norm.bias"},
    {"mlp_norm.bias", "ffn_norm.bias"},
    {"attention.q_proj.weight", "attn_qkv.weight", 0, 1, 0, 3},
    {"attention.k_proj.weight", "attn_qkv.weight", 0, 1, 1, 3},
    {"attention.v_proj.weight", "attn_qkv.weight", 0, 1, 2, 3},
    {"attention.q_proj.bias", "attn_qkv.bias", 0, 1, 0, 3},
    {"attention.k_proj.bias", "attn_qkv.bias", 0, 1, 1, 3},
    {"attention.v_proj.bias", "attn_qkv.bias", 0, 1, 2, 3},
    {"attention.o_proj.bias", "attn_output.bias"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.up_proj.bias", "ffn_up.bias"},
    {"mlp.down_proj.bias", "ffn_down.bias"},
};

using GgufRules = std::vector<std::span<const GgufRule>>;

GgufRules gguf_rules(const Architecture& architecture, LatentStorage latent) {
  const std::string_view type = architecture.model_type;
  GgufRules rules = {kGgufCommon};
  if (type.starts_with("deepseek")) {
    rules.insert(rules.end(), {kGgufNorms, kGgufLatent});
    if (latent == LatentStorage::joined)
      rules.emplace_back(kGgufJoinedLatent);
    else
      rules.emplace_back(kGgufDividedLatent);
  } else if (type == "gpt2") {
    rules.insert(rules.end(), {kGgufNorms, kGgufOfGpt2});
  } else if (type == "gpt_oss") {
    rules.insert(rules.end(), {kGgufAttention, kGgufOfGptOss});
  } else if (type == "olmo2" || type == "olmo3") {
    rules.insert(rules.end(), {kGgufPostNorms, kGgufAttention});
  } else if (type == "llama" || type == "mistral" || type == "mixtral") {
    rules.insert(rules.end(), {kGgufNorms, kGgufPairedAttention});
  } else {
    rules.insert(rules.end(), {kGgufNorms, kGgufAttention});
  }
  return rules;
}

// "layers.12.mlp_norm.weight" as "blk.12." and what follows; a name that no layer has as "" and itself.
std::pair<std::string, std::string_view> block_and_rest(std::string_view name) {
  constexpr std::string_view kLayerPrefix = "layers.";
  if (!name.starts_with(kLayerPrefix)) return {"", name};
  const std::string_view rest = name.substr(kLayerPrefix.size());
  const size_t dot = rest.find('.');
  return {cat("blk.", rest.substr(0, dot), "."), rest.substr(dot + 1)};
}

bool has_vocabulary_rows(std::string_view name) {
  return name == "embedding.weight" || name == "head.weight";
}

// Visits the file's tensors that a rule takes something from: name, shape and piece.
class GgufLinker {
 public:
  GgufLinker(const Architecture& architecture, const ModelConfig& model, LatentStorage latent)
      : architecture_(architecture), model_(model), rules_(gguf_rules(architecture, latent)) {}

  template <class Visit>
  void each(const ModelTensor& tensor, const Visit& visit) const {
    const auto [block, rest] = block_and_rest(tensor.name);
    bool found = tensor.buffer;
    for (const auto& table : rules_)
      for (const GgufRule& rule : table) {
        if (rule.witan != rest) continue;
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
    piece.normalise();
    visit(other, shape, piece);
  }

  Shape plain(const GgufRule& rule, const ModelTensor& tensor, SharedBox& piece) const {
    const int rows_dim = tensor.experts ? 1 : 0;
    const bool vector = tensor.shape.dims() == rows_dim + 1;
    const int64_t experts = tensor.experts ? tensor.shape[0] : 1, in = vector ? 1 : tensor.shape[rows_dim + 1];
    const int64_t rows = has_vocabulary_rows(tensor.name) ? model_.vocab_size : tensor.shape[rows_dim];
    const int64_t own = rows / rule.parts, out = own * rule.other_parts;
    piece.sizes = {1, experts, own, in};
    piece.to.strides = {0, rows * in, in, 1};
    piece.from.strides = {0, out * in, in, 1};
    piece.to.first = rule.part * own * in;
    piece.from.first = rule.other_part * own * in;
    if (rule.rows == GgufRows::rope_pairs) {
      const int64_t channels = model_.attention.qk_head_dim(model_.hidden_size), half = channels / 2;
      piece.sizes = {rows / channels, 2, half, in};
      piece.to.strides = {channels * in, half * in, in, 1};
      piece.from.strides = {channels * in, in, 2 * in, 1};
    }
    Shape shape;
    if (tensor.experts) shape.append(experts);
    shape.append(out);
    if (!vector) shape.append(in);
    return shape;
  }

  // Of kv_b_proj [heads * (nope + value), rank] the keys, as [heads, rank, nope], or the values, [heads, value, rank].
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
  const GgufRules rules_;
};

}  // namespace

std::vector<Link> gguf_links(const Architecture& architecture, const ModelConfig& model, LatentStorage latent,
                             const std::vector<ModelTensor>& tensors) {
  const GgufLinker linker(architecture, model, latent);
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
  const GgufLinker linker(architecture, model, latent);
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
         name.ends_with(".ffn_gate_inp.weight") || name == "position_embd.weight";
}

}  // namespace witan
