// LFM2: gated short convolutions in most layers, attention in the others, and in LFM2-MoE experts after the first
// layers.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <variant>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr const char *kConvolution = "conv", *kAttention = "full_attention";

// ---- Tensors

constexpr TensorRule kLfmModelRules[] = {
    {"embedding.weight", "embed_tokens.weight"},
    {"final_norm.weight", "embedding_norm.weight"},
    {"head.weight", kHeadName},
    {"attention_norm.weight", "layers.{l}.operator_norm.weight"},
    {"mlp_norm.weight", "layers.{l}.ffn_norm.weight"},
};

constexpr TensorRule kLfmAttentionRules[] = {
    {"attention.q_proj.weight", "layers.{l}.self_attn.q_proj.weight"},
    {"attention.k_proj.weight", "layers.{l}.self_attn.k_proj.weight"},
    {"attention.v_proj.weight", "layers.{l}.self_attn.v_proj.weight"},
    {"attention.o_proj.weight", "layers.{l}.self_attn.out_proj.weight"},
    {"attention.q_norm.weight", "layers.{l}.self_attn.q_layernorm.weight"},
    {"attention.k_norm.weight", "layers.{l}.self_attn.k_layernorm.weight"},
};

constexpr std::string_view kBcx[] = {"short_convolution.B_proj.weight", "short_convolution.C_proj.weight",
                                     "short_convolution.x_proj.weight"};
constexpr std::string_view kBcxBiases[] = {"short_convolution.B_proj.bias", "short_convolution.C_proj.bias",
                                           "short_convolution.x_proj.bias"};
constexpr std::string_view kInBcx = "layers.{l}.conv.in_proj.weight", kInBcxBias = "layers.{l}.conv.in_proj.bias";
constexpr TensorRule kConvolutionRules[] = {
    {.witan = "short_convolution.B_proj.weight", .other = kInBcx, .joined = kBcx},
    {.witan = "short_convolution.C_proj.weight", .other = kInBcx, .joined = kBcx},
    {.witan = "short_convolution.x_proj.weight", .other = kInBcx, .joined = kBcx},
    {.witan = "short_convolution.B_proj.bias", .other = kInBcxBias, .joined = kBcxBiases},
    {.witan = "short_convolution.C_proj.bias", .other = kInBcxBias, .joined = kBcxBiases},
    {.witan = "short_convolution.x_proj.bias", .other = kInBcxBias, .joined = kBcxBiases},
    {.witan = "short_convolution.conv.weight", .other = "layers.{l}.conv.conv.weight", .depthwise = true},
    {"short_convolution.conv.bias", "layers.{l}.conv.conv.bias"},
    {"short_convolution.o_proj.weight", "layers.{l}.conv.out_proj.weight"},
    {"short_convolution.o_proj.bias", "layers.{l}.conv.out_proj.bias"},
};

constexpr TensorRule kLfmMlpRules[] = {
    {"mlp.gate_up_proj.weight", "layers.{l}.feed_forward.w1.weight", 0, 2},
    {"mlp.gate_up_proj.weight", "layers.{l}.feed_forward.w3.weight", 1, 2},
    {"mlp.down_proj.weight", "layers.{l}.feed_forward.w2.weight"},
};

constexpr TensorRule kLfmMoeRules[] = {
    {"moe.router.weight", "layers.{l}.feed_forward.gate.weight"},
    {"moe.router.expert_bias", "layers.{l}.feed_forward.expert_bias"},
    {.witan = "moe.experts.gate_up_proj",
     .other = "layers.{l}.feed_forward.experts.{e}.w1.weight",
     .part = 0,
     .parts = 2,
     .storage = ExpertStorage::single},
    {.witan = "moe.experts.gate_up_proj",
     .other = "layers.{l}.feed_forward.experts.{e}.w3.weight",
     .part = 1,
     .parts = 2,
     .storage = ExpertStorage::single},
    {.witan = "moe.experts.down_proj",
     .other = "layers.{l}.feed_forward.experts.{e}.w2.weight",
     .storage = ExpertStorage::single},
    {.witan = "moe.experts.gate_up_proj",
     .other = "layers.{l}.feed_forward.experts.gate_up_proj",
     .storage = ExpertStorage::fused},
    {.witan = "moe.experts.down_proj",
     .other = "layers.{l}.feed_forward.experts.down_proj",
     .storage = ExpertStorage::fused},
};

// ---- config.json

// The layers with convolutions by layer_types, which a file of LFM2-MoE must have.
std::vector<bool> layers_by_types(HfReader& in) {
  const Json* types = in.keys.find("layer_types");
  require<ConfigError>(types != nullptr, in.keys.where(), ": layer_types is missing");
  if (!types->is_array() || static_cast<int64_t>(types->size()) != in.layers)
    in.keys.refuse("layer_types", "must have an entry for each of num_hidden_layers");
  std::vector<bool> convolutions;
  for (const Json& type : *types) {
    if (type != kConvolution && type != kAttention)
      in.keys.refuse("layer_types", "models of this type have layers of conv and full_attention");
    convolutions.push_back(type == kConvolution);
  }
  return convolutions;
}

// LFM2's first files list the layers with attention instead.
std::vector<bool> layers_by_index(HfReader& in) {
  const Json* attending = in.keys.find("full_attn_idxs");
  if (in.keys.has("layer_types")) return layers_by_types(in);
  std::vector<bool> convolutions(static_cast<size_t>(in.layers), attending != nullptr);
  if (!attending) return convolutions;
  if (!attending->is_array()) in.keys.refuse("full_attn_idxs", "must list numbers of layers");
  for (const Json& layer : *attending) {
    if (!layer.is_number_integer() || layer < 0 || layer >= in.layers)
      in.keys.refuse("full_attn_idxs", "must list numbers of layers");
    convolutions[layer.get<size_t>()] = false;
  }
  return convolutions;
}

void read_convolutions(HfReader& in, const std::vector<bool>& convolutions) {
  const int64_t taps = in.keys.integer("conv_L_cache");
  const bool bias = in.keys.truthy("conv_bias");
  if (std::ranges::find(convolutions, true) == convolutions.end()) return;
  std::string list;
  for (const bool layer : convolutions) list += cat(list.empty() ? "[" : ",", layer ? 1 : 0);
  in.to.set("experimental_attention_variant", "short_convolution");
  in.to.set("linear_attention_freq", list + "]");
  in.to.set("linear_conv_kernel_dim", taps);
  in.to.set("linear_conv_bias", bias);
}

// All but the MLPs.
void read_lfm(HfReader& in) {
  in.sizes();
  in.to.set("norm_epsilon", in.keys.number("norm_eps"));
  if (in.keys.has("tie_embedding")) in.to.set("untie_embeddings_and_output_weights", !in.keys.flag("tie_embedding"));
  in.keys.only("hidden_act", "silu", "models of this type have SwiGLU, whatever this key says");
  in.rope();
  in.to.set("qk_layernorm", true);
  in.no_attention_bias();
  in.no_mlp_bias();
}

// LFM2 gives MLPs two thirds of the size in the file, times a factor, rounded up to a multiple.
void read_adjusted_size(HfReader& in) {
  int64_t size = in.keys.integer(in.keys.has("block_ff_dim") ? "block_ff_dim" : "intermediate_size");
  const bool adjusts = in.keys.truthy("block_auto_adjust_ff_dim");
  const bool scales = !in.keys.is_null("block_ffn_dim_multiplier");
  const double factor = scales ? in.keys.number("block_ffn_dim_multiplier") : 1;
  const int64_t multiple = in.keys.integer("block_multiple_of");
  if (adjusts) size = 2 * size / 3;
  if (adjusts && scales) {
    if (multiple == 0) in.keys.refuse("block_multiple_of", "the size of MLPs is a multiple of it");
    size = static_cast<int64_t>(factor * static_cast<double>(size));
    size = (size + multiple - 1) / multiple * multiple;
  }
  in.to.set("ffn_hidden_size", size);
}

void read_lfm2(HfReader& in) {
  read_lfm(in);
  read_adjusted_size(in);
  read_convolutions(in, layers_by_index(in));
  in.dense();
  for (const char* key :
       {"block_dim", "block_norm_eps", "block_mlp_init_scale", "block_out_init_scale", "block_use_swiglu",
        "block_use_xavier_init", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads", "use_pos_enc"})
    in.keys.find(key);  // transformers passes over these keys of the authors' own code
}

void read_lfm2_moe(HfReader& in) {
  read_lfm(in);
  read_convolutions(in, layers_by_types(in));
  const int64_t dense = in.keys.integer("num_dense_layers"), experts = in.keys.integer("num_experts"),
                chosen = in.keys.integer("num_experts_per_tok"), size = in.keys.integer("moe_intermediate_size");
  const bool bias = in.keys.truthy("use_expert_bias"), divides = in.keys.truthy("norm_topk_prob");
  const double scale = in.keys.number("routed_scaling_factor");
  in.keys.find("output_router_logits");  // transformers' models of this type have no loss of their routers
  if (dense >= in.layers) return in.dense();
  if (experts == 0) in.keys.refuse("num_experts", "layers after num_dense_layers have experts");
  in.experts(experts, chosen);
  in.to.set("moe_ffn_hidden_size", size);
  in.to.set("moe_router_score_function", "sigmoid");
  in.to.set("moe_router_enable_expert_bias", bias);
  in.to.set("moe_router_norm_topk_prob", divides ? "true" : "false");
  if (scale != 1) in.to.set("moe_router_topk_scaling_factor", scale);
  std::vector<bool> moe(static_cast<size_t>(in.layers), true);
  std::fill_n(moe.begin(), dense, false);
  in.moe_layers(moe, "num_dense_layers");
}

void write_lfm(HfWriter& to) {
  to.sizes();
  to.out["norm_eps"] = to.model.norm.norm_epsilon;
  for (const char* key : {"rms_norm_eps", "hidden_act", "attention_dropout"}) to.out.erase(key);
  to.rope();
  to.out["conv_L_cache"] = to.model.linear_attention.linear_conv_kernel_dim;
  to.out["conv_bias"] = to.model.linear_attention.linear_conv_bias;
  to.out["layer_types"] = HfWriter::Out::array();
  for (const LayerSpec& layer : to.layers)
    to.out["layer_types"].push_back(std::holds_alternative<ShortConvolutionSpec>(layer.mixer) ? kConvolution
                                                                                              : kAttention);
}

void write_lfm2(HfWriter& to) {
  write_lfm(to);
  to.out["block_auto_adjust_ff_dim"] = false;
}

void write_lfm2_moe(HfWriter& to) {
  write_lfm(to);
  const MoeConfig& moe = to.model.moe;
  if (moe.num_experts == 0) {
    to.out["num_dense_layers"] = to.model.num_layers;
    return;
  }
  to.experts("num_experts", "moe_intermediate_size");
  to.out["num_dense_layers"] = std::ranges::find(to.layers, true, &LayerSpec::moe) - to.layers.begin();
  to.out["use_expert_bias"] = moe.moe_router_enable_expert_bias;
  to.out["norm_topk_prob"] = moe.moe_router_norm_topk_prob != "false";
  to.out["routed_scaling_factor"] = moe.moe_router_topk_scaling_factor;
}

// ---- GGUF files

// The norm before the head is named after the embedding.
constexpr GgufRule kGgufLfm[] = {
    {"final_norm.weight", "token_embd_norm.weight"},
    {.witan = "short_convolution.B_proj.weight", .other = "shortconv.in_proj.weight", .joined = kBcx},
    {.witan = "short_convolution.C_proj.weight", .other = "shortconv.in_proj.weight", .joined = kBcx},
    {.witan = "short_convolution.x_proj.weight", .other = "shortconv.in_proj.weight", .joined = kBcx},
    {"short_convolution.conv.weight", "shortconv.conv.weight"},
    {"short_convolution.o_proj.weight", "shortconv.out_proj.weight"},
};

std::vector<GgufRule> common_but_final_norm() {
  std::vector<GgufRule> rules;
  for (const GgufRule& rule : kGgufCommon)
    if (rule.witan != "final_norm.weight") rules.push_back(rule);
  return rules;
}

// Layers without heads of keys are convolutions.
void read_gguf_lfm(GgufReader& in) {
  in.sizes();
  in.out["norm_eps"] = in.out["rms_norm_eps"];
  in.rope();
  const int64_t heads = in.out["num_attention_heads"].get<int64_t>(),
                groups = in.same_in_layers("attention.head_count_kv");
  in.out["num_key_value_heads"] = groups > 0 ? groups : heads;
  in.out["layer_types"] = Json::array();
  for (const int64_t own : in.of_layers("attention.head_count_kv"))
    in.out["layer_types"].push_back(own > 0 ? kAttention : kConvolution);
  in.out["conv_L_cache"] = in.integer("shortconv.l_cache");
  const double channels = heads > 0 ? in.out["hidden_size"].get<double>() / static_cast<double>(heads) : 0;
  for (const char* key : {"attention.key_length", "attention.value_length", "rope.dimension_count"})
    in.only(key, channels, "in llama.cpp's models of this type all heads are as wide as the model, and rotate whole");
}

void write_gguf_lfm(GgufWriter& to) {
  to.sizes();
  to.rope();
  const auto groups = to.hf.at("num_key_value_heads").get<int64_t>();
  std::vector<int64_t> of_layers;
  for (const Json& type : to.hf.at("layer_types")) of_layers.push_back(type == kConvolution ? 0 : groups);
  to.put_list("attention.head_count_kv", std::move(of_layers));
  to.put("shortconv.l_cache", "conv_L_cache");
}

void read_gguf_lfm2(GgufReader& in) {
  read_gguf_lfm(in);
  in.out["block_auto_adjust_ff_dim"] = false;
  in.no_experts_chosen();
}

// llama.cpp divides weights of experts by their sum, and does not scale them.
void read_gguf_lfm2_moe(GgufReader& in) {
  read_gguf_lfm(in);
  in.experts("num_experts");
  in.out["moe_intermediate_size"] = in.integer("expert_feed_forward_length");
  in.out["num_dense_layers"] = in.integer("leading_dense_block_count", 0);
  in.only("expert_gating_func", static_cast<double>(kSigmoidGate), "LFM2's scores are sigmoids");
  in.only("expert_weights_scale", 1, "llama.cpp does not scale weights of experts in models of this type");
  in.check_experts();
}

void write_gguf_lfm2_moe(GgufWriter& to) {
  to.need_experts();
  write_gguf_lfm(to);
  to.experts();
  to.put("expert_feed_forward_length", "moe_intermediate_size");
  to.put("leading_dense_block_count", "num_dense_layers");
  to.put("expert_gating_func", kSigmoidGate);
}

constexpr std::string_view kLfmDefaults = R"({"vocab_size": 65536, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 8, "max_position_embeddings": 128000, "initializer_range": 0.02, "norm_eps": 1e-5,
  "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "rope_theta": 1000000.0, "attention_dropout": 0.0,
  "conv_bias": false, "conv_L_cache": 3})";

}  // namespace

std::vector<Architecture> lfm2() {
  static const std::vector<GgufRule> common = common_but_final_norm();
  Architecture dense = {
      "lfm2", "Lfm2ForCausalLM", "model.", {kLfmModelRules, kLfmAttentionRules, kConvolutionRules, kLfmMlpRules}};
  dense.defaults = {kLfmDefaults, R"({"hidden_size": 2560, "intermediate_size": 12288, "block_multiple_of": 256,
      "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": true})"};
  dense.read = read_lfm2;
  dense.write = write_lfm2;
  dense.gguf = {.name = "lfm2",
                .rules = {common, kGgufLfm, kGgufNorms, kGgufAttention},
                .read = read_gguf_lfm2,
                .write = write_gguf_lfm};
  Architecture moe = dense;
  moe.model_type = "lfm2_moe";
  moe.name = "Lfm2MoeForCausalLM";
  moe.rules.emplace_back(kLfmMoeRules);
  moe.defaults = {kLfmDefaults, R"({"hidden_size": 2048, "intermediate_size": 7168, "moe_intermediate_size": 1792,
      "num_dense_layers": 2, "num_experts_per_tok": 4, "num_experts": 32, "use_expert_bias": true,
      "routed_scaling_factor": 1.0, "norm_topk_prob": true})"};
  moe.read = read_lfm2_moe;
  moe.write = write_lfm2_moe;
  moe.gguf.name = "lfm2moe";
  moe.gguf.read = read_gguf_lfm2_moe;
  moe.gguf.write = write_gguf_lfm2_moe;
  return {dense, moe};
}

}  // namespace witan::models
