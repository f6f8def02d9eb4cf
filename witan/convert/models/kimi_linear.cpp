// Kimi Linear: Kimi Delta Attention in most layers, latent attention without rotation in the others, and DeepSeek-V3's
// experts.
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

// ---- Tensors

constexpr TensorRule kimi_taps(std::string_view witan, std::string_view other) {
  return {.witan = witan, .other = other, .depthwise = true};
}
// The projections of queries and of outputs have the same names in both kinds of layers.
constexpr TensorRule kKimiDeltaRules[] = {
    kimi_taps("gated_delta.q_conv.weight", "layers.{l}.self_attn.q_conv1d.weight"),
    kimi_taps("gated_delta.k_conv.weight", "layers.{l}.self_attn.k_conv1d.weight"),
    kimi_taps("gated_delta.v_conv.weight", "layers.{l}.self_attn.v_conv1d.weight"),
    {"gated_delta.q_proj.weight", "layers.{l}.self_attn.q_proj.weight"},
    {"gated_delta.k_proj.weight", "layers.{l}.self_attn.k_proj.weight"},
    {"gated_delta.v_proj.weight", "layers.{l}.self_attn.v_proj.weight"},
    {"gated_delta.f_a_proj.weight", "layers.{l}.self_attn.f_a_proj.weight"},
    {"gated_delta.f_b_proj.weight", "layers.{l}.self_attn.f_b_proj.weight"},
    {"gated_delta.g_a_proj.weight", "layers.{l}.self_attn.g_a_proj.weight"},
    {"gated_delta.g_b_proj.weight", "layers.{l}.self_attn.g_b_proj.weight"},
    {"gated_delta.b_proj.weight", "layers.{l}.self_attn.b_proj.weight"},
    {.witan = "gated_delta.A_log", .other = "layers.{l}.self_attn.A_log", .of_heads = true},
    {"gated_delta.dt_bias", "layers.{l}.self_attn.dt_bias"},
    {"gated_delta.norm.weight", "layers.{l}.self_attn.o_norm.weight"},
    {"gated_delta.o_proj.weight", "layers.{l}.self_attn.o_proj.weight"},
};

constexpr TensorRule kKimiExpertRules[] = {
    {"moe.router.weight", "layers.{l}.block_sparse_moe.gate.weight"},
    {"moe.router.expert_bias", "layers.{l}.block_sparse_moe.gate.e_score_correction_bias"},
    {"moe.shared_experts.gate_up_proj.weight", "layers.{l}.block_sparse_moe.shared_experts.gate_proj.weight", 0, 2},
    {"moe.shared_experts.gate_up_proj.weight", "layers.{l}.block_sparse_moe.shared_experts.up_proj.weight", 1, 2},
    {"moe.shared_experts.down_proj.weight", "layers.{l}.block_sparse_moe.shared_experts.down_proj.weight"},
};

// ---- config.json, whose keys have other names in published folders than in most of transformers' classes, which
// reads both

constexpr const char* kKimiLists = "linear_attn_config";

const char* present(const HfReader& in, const char* own, const char* other) {
  return !in.keys.has(own) && in.keys.has(other) ? other : own;
}

const Json* of_kimi_lists(HfReader& in, const char* key) {
  const Json* const lists = in.keys.find(kKimiLists);
  if (!lists) return nullptr;
  if (!lists->is_object()) in.keys.refuse(kKimiLists, "must be an object");
  const auto found = lists->find(key);
  return found == lists->end() ? nullptr : &*found;
}

int64_t kimi_size(HfReader& in, const char* own, const char* listed) {
  const Json* const value = of_kimi_lists(in, listed);
  if (!value) return in.keys.integer(own);
  in.keys.find(own);
  if (!value->is_number_unsigned()) in.keys.refuse(kKimiLists, cat(listed, " must be a whole number"));
  return value->get<int64_t>();
}

// By layer_types, or by the numbers of layers, from 1 on, in linear_attn_config, or all but every fourth after the
// first.
std::vector<bool> kimi_delta_layers(HfReader& in) {
  std::vector<bool> delta;
  for (int64_t layer = 0; layer < in.layers; ++layer) delta.push_back(layer == 0 || layer % 4 != 0);
  const Json *types = in.keys.find("layer_types"), *full = of_kimi_lists(in, "full_attn_layers"),
             *linear = of_kimi_lists(in, "kda_layers");
  if (types) {
    if (!types->is_array() || types->size() != delta.size())
      in.keys.refuse("layer_types", "must have an entry for each of num_hidden_layers");
    for (size_t layer = 0; layer < delta.size(); ++layer) {
      const Json& type = (*types)[layer];
      if (type != "linear_attention" && type != "full_attention")
        in.keys.refuse("layer_types", "models of this type have layers of linear_attention and full_attention");
      delta[layer] = type == "linear_attention";
    }
  } else if (full && linear) {
    std::vector<int> named(delta.size(), 0);
    for (const Json* list : {full, linear})
      for (const Json& number : *list) {
        if (!number.is_number_unsigned() || number < 1 || number > in.layers)
          in.keys.refuse(kKimiLists, "must list numbers of layers, from 1 on");
        const auto layer = number.get<size_t>() - 1;
        delta[layer] = list == linear;
        ++named[layer];
      }
    if (std::ranges::any_of(named, [](int times) { return times != 1; }))
      in.keys.refuse(kKimiLists, "must name each layer once");
  }
  return delta;
}

void read_kimi_delta(HfReader& in) {
  const std::vector<bool> delta = kimi_delta_layers(in);
  const int64_t heads = kimi_size(in, "linear_num_heads", "num_heads"),
                channels = kimi_size(in, "linear_head_dim", "head_dim"),
                taps = kimi_size(in, "linear_conv_kernel_dim", "short_conv_kernel_size");
  if (std::ranges::find(delta, true) == delta.end()) return;
  in.keys.only("hidden_act", "silu", "Witan's Kimi Delta Attention has SiLU behind its convolution");
  std::string list;
  for (const bool layer : delta) list += cat(list.empty() ? "[" : ",", layer ? 1 : 0);
  in.to.set("experimental_attention_variant", "kimi_delta");
  in.to.set("linear_attention_freq", list + "]");
  in.to.set("linear_num_key_heads", heads);
  in.to.set("linear_num_value_heads", heads);
  in.to.set("linear_key_head_dim", channels);
  in.to.set("linear_value_head_dim", channels);
  in.to.set("linear_conv_kernel_dim", taps);
}

void read_kimi_sizes(HfReader& in) {
  in.layers = in.keys.integer("num_hidden_layers");
  in.hidden = in.keys.integer("hidden_size");
  in.to.set("num_layers", in.layers);
  in.to.set("hidden_size", in.hidden);
  in.to.set("vocab_size", in.keys.integer("vocab_size"));
  in.to.set("ffn_hidden_size", in.keys.integer("intermediate_size"));
  in.to.set("num_attention_heads", in.keys.integer("num_attention_heads"));
  in.to.set("norm_epsilon", in.keys.number("rms_norm_eps"));
  in.to.set("untie_embeddings_and_output_weights", !in.keys.flag("tie_word_embeddings"));
  in.training_keys("attention_dropout");
  in.model.positions = in.keys.integer(present(in, "model_max_length", "max_position_embeddings"));
  in.activation();
}

void read_kimi_attention(HfReader& in) {
  in.to.set("multi_latent_attention", true);
  in.to.set("position_embedding_type", "none");
  if (const auto rank = in.keys.nullable_integer("q_lora_rank")) in.to.set("q_lora_rank", *rank);
  in.to.set("kv_lora_rank", in.keys.integer("kv_lora_rank"));
  const int64_t own = in.keys.integer("qk_nope_head_dim"), shared = in.keys.integer("qk_rope_head_dim");
  in.to.set("qk_head_dim", own);
  in.to.set("qk_pos_emb_head_dim", shared);
  in.to.set("v_head_dim", in.keys.integer("v_head_dim"));
  in.keys.only("qk_head_dim", own + shared, "must be qk_nope_head_dim + qk_rope_head_dim");
  in.keys.only("mla_use_nope", true, "transformers' layers do not rotate, whatever this key says");
  for (const char* key : {"num_key_value_heads", "head_dim", "rope_theta", "rope_scaling", "rope_parameters"})
    in.keys.find(key);  // transformers passes over them
  in.no_attention_bias("Witan's latent attention has no biases");
}

void read_kimi_experts(HfReader& in) {
  std::vector<bool> moe;
  for (int64_t layer = 0, dense = in.keys.integer("first_k_dense_replace", 1); layer < in.layers; ++layer)
    moe.push_back(layer >= dense);
  moe = in.sparse_layers(std::move(moe));
  in.keys.only("moe_layer_freq", 1, "transformers passes over this key in models of this type");
  in.keys.only("moe_router_activation_func", "sigmoid", "transformers' scores are sigmoids, whatever this key says");
  in.keys.find("use_grouped_topk");
  const char *const count = present(in, "num_experts", "num_local_experts"),
                    *const chosen = present(in, "num_experts_per_token", "num_experts_per_tok"),
                    *const beside = present(in, "num_shared_experts", "n_shared_experts"),
                    *const groups = present(in, "num_expert_group", "n_group"),
                    *const normalised = present(in, "moe_renormalize", "norm_topk_prob");
  for (const char* key :
       {count, chosen, beside, groups, normalised, "moe_intermediate_size", "routed_scaling_factor", "topk_group"})
    in.keys.find(key);
  if (std::ranges::find(moe, true) == moe.end()) return in.dense();
  in.experts(in.keys.integer(count), in.keys.integer(chosen));
  const int64_t size = in.keys.integer("moe_intermediate_size"), shared = in.keys.integer(beside);
  if (shared == 0) in.keys.refuse(beside, "layers with experts have a shared one");
  in.to.set("moe_ffn_hidden_size", size);
  in.to.set("moe_shared_expert_intermediate_size", shared * size);
  if (const double scale = in.keys.number("routed_scaling_factor"); scale != 1)
    in.to.set("moe_router_topk_scaling_factor", scale);
  in.moe_layers(moe, "mlp_layer_types");
  in.to.set("moe_router_score_function", "sigmoid");
  in.to.set("moe_router_enable_expert_bias", true);
  in.to.set("moe_router_norm_topk_prob", in.keys.truthy(normalised) ? "true" : "false");
  if (const int64_t of = in.keys.integer(groups); of > 1) {
    in.to.set("moe_router_num_groups", of);
    in.to.set("moe_router_group_topk", in.keys.integer("topk_group"));
    in.to.set("moe_router_group_score_topk", int64_t{2});
  }
}

void read_kimi_linear(HfReader& in) {
  read_kimi_sizes(in);
  read_kimi_delta(in);
  read_kimi_attention(in);
  read_kimi_experts(in);
  in.no_mlp_bias();
}

void write_kimi_linear(HfWriter& to) {
  const ModelConfig& model = to.model;
  HfWriter::Out& out = to.out;
  to.sizes(HfHeads::latent);
  out["model_max_length"] = out["max_position_embeddings"];
  out.erase("max_position_embeddings");
  const AttentionConfig& attention = model.attention;
  out["q_lora_rank"] = attention.q_lora_rank > 0 ? HfWriter::Out(attention.q_lora_rank) : HfWriter::Out();
  out["kv_lora_rank"] = attention.kv_lora_rank;
  out["qk_nope_head_dim"] = attention.latent_qk_head_dim;
  out["qk_rope_head_dim"] = attention.qk_pos_emb_head_dim;
  out["v_head_dim"] = attention.value_head_dim(model.hidden_size);
  out["mla_use_nope"] = true;
  const LinearAttentionConfig& delta = model.linear_attention;
  HfWriter::Out& lists = out[kKimiLists];
  lists = {{"full_attn_layers", HfWriter::Out::array()},
           {"kda_layers", HfWriter::Out::array()},
           {"num_heads", delta.linear_num_value_heads},
           {"head_dim", delta.linear_key_head_dim},
           {"short_conv_kernel_size", delta.linear_conv_kernel_dim}};
  for (size_t layer = 0; layer < to.layers.size(); ++layer)
    lists[std::holds_alternative<GatedDeltaSpec>(to.layers[layer].mixer) ? "kda_layers" : "full_attn_layers"].push_back(
        layer + 1);
  to.mlp_layer_types();
  out["pad_token_id"] = nullptr;  // transformers' default is beyond smaller vocabularies, and refused there
  if (model.moe.num_experts == 0) return;
  to.dense_layers_first();
  out["num_experts"] = model.moe.num_experts;
  out["num_experts_per_token"] = model.moe.moe_router_topk;
  out["moe_intermediate_size"] = to.width_of_expert();
  out["num_shared_experts"] = model.moe.moe_shared_expert_intermediate_size / to.width_of_expert();
  out["routed_scaling_factor"] = model.moe.moe_router_topk_scaling_factor;
  out["moe_renormalize"] = model.moe.moe_router_norm_topk_prob != "false";
  out["num_expert_group"] = std::max<int64_t>(model.moe.moe_router_num_groups, 1);
  out["topk_group"] = std::max<int64_t>(model.moe.moe_router_group_topk, 1);
  out["moe_router_activation_func"] = "sigmoid";
}

// ---- GGUF files

constexpr GgufRule kGgufKimiDelta[] = {
    {.witan = "gated_delta.q_conv.weight", .other = "ssm_conv1d_q.weight", .shape = GgufShape::taps},
    {.witan = "gated_delta.k_conv.weight", .other = "ssm_conv1d_k.weight", .shape = GgufShape::taps},
    {.witan = "gated_delta.v_conv.weight", .other = "ssm_conv1d_v.weight", .shape = GgufShape::taps},
    {"gated_delta.q_proj.weight", "attn_q.weight"},
    {"gated_delta.k_proj.weight", "attn_k.weight"},
    {"gated_delta.v_proj.weight", "attn_v.weight"},
    {"gated_delta.f_a_proj.weight", "ssm_f_a.weight"},
    {"gated_delta.f_b_proj.weight", "ssm_f_b.weight"},
    {"gated_delta.g_a_proj.weight", "ssm_g_a.weight"},
    {"gated_delta.g_b_proj.weight", "ssm_g_b.weight"},
    {"gated_delta.b_proj.weight", "ssm_beta.weight"},
    {.witan = "gated_delta.A_log", .other = "ssm_a", .values = GgufValues::minus_exp, .shape = GgufShape::heads},
    {"gated_delta.dt_bias", "ssm_dt.bias"},
    {"gated_delta.norm.weight", "ssm_norm.weight"},
    {"gated_delta.o_proj.weight", "attn_output.weight"},
};

// A layer without heads of keys has Kimi Delta Attention, of as many heads as latent attention.
void read_gguf_kimi_linear(GgufReader& in) {
  in.sizes();
  in.out["layer_types"] = Json::array();
  for (const int64_t groups : in.of_layers("attention.head_count_kv"))
    in.out["layer_types"].push_back(groups == 0 ? "linear_attention" : "full_attention");
  in.out["linear_num_heads"] = in.out["num_attention_heads"];
  in.out["linear_head_dim"] = in.integer("kda.head_dim");
  in.out["linear_conv_kernel_dim"] = in.integer("ssm.conv_kernel");
  in.only("attention.q_lora_rank", 0, "llama.cpp's models of this type project queries at once");
  in.out["kv_lora_rank"] = in.integer("attention.kv_lora_rank");
  const int64_t shared = in.integer("rope.dimension_count");
  in.out["qk_rope_head_dim"] = shared;
  in.out["qk_nope_head_dim"] = in.integer("attention.key_length_mla") - shared;
  in.out["v_head_dim"] = in.integer("attention.value_length_mla");
  // Sizes of llama.cpp's cache, and a rotation of which it makes no use.
  for (const char* unused : {"attention.key_length", "attention.value_length", "rope.freq_base"}) in.find(unused);
  in.routed_experts();
  in.check_experts();
  in.out["norm_topk_prob"] = true;
  in.out["num_experts"] = in.out["n_routed_experts"];
  in.out.erase("n_routed_experts");
  in.only("expert_gating_func", static_cast<double>(kSigmoidGate), "Kimi Linear's scores are sigmoids");
}

void write_gguf_kimi_linear(GgufWriter& to) {
  const Json& hf = to.hf;
  to.need_experts();
  to.sizes();
  std::vector<int64_t> groups;
  for (const LayerSpec& layer : to.model.layers())
    groups.push_back(std::holds_alternative<GatedDeltaSpec>(layer.mixer) ? 0 : 1);
  to.put_list("attention.head_count_kv", std::move(groups));
  to.put("ssm.conv_kernel", hf.at(kKimiLists).at("short_conv_kernel_size").get<int64_t>());
  to.put("kda.head_dim", hf.at(kKimiLists).at("head_dim").get<int64_t>());
  const int64_t rank = hf.at("kv_lora_rank").get<int64_t>(), shared = hf.at("qk_rope_head_dim").get<int64_t>();
  if (hf.at("q_lora_rank").is_number()) to.put("attention.q_lora_rank", "q_lora_rank");
  to.put("attention.kv_lora_rank", rank);
  to.put("rope.dimension_count", shared);
  to.put("attention.key_length", rank + shared);
  to.put("attention.key_length_mla", hf.at("qk_nope_head_dim").get<int64_t>() + shared);
  to.put("attention.value_length_mla", "v_head_dim");
  to.experts();
  to.put("expert_feed_forward_length", "moe_intermediate_size");
  to.put("expert_shared_count", "num_shared_experts");
  to.put("leading_dense_block_count", "first_k_dense_replace");
  to.put_real("expert_weights_scale", hf.at("routed_scaling_factor").get<double>());
  to.put("expert_gating_func", kSigmoidGate);
  if (hf.at("num_expert_group").get<int64_t>() <= 1) return;
  to.put("expert_group_count", "num_expert_group");
  to.put("expert_group_used_count", "topk_group");
}

}  // namespace

std::vector<Architecture> kimi_linear() {
  Architecture kimi = llama_like("kimi_linear", "KimiLinearForCausalLM");
  kimi.rules = {kModelRules, kPreNormRules,    kLatentRules,           kKimiDeltaRules,
                kMlpRules,   kKimiExpertRules, kBlockSparseExpertRules};
  kimi.modules = {{".self_attn.f_a_proj.", ".self_attn.forget_gate.f_a_proj."},
                  {".self_attn.f_b_proj.", ".self_attn.forget_gate.f_b_proj."},
                  {".block_sparse_moe.experts.{e}.w1.weight", ".mlp.experts.gate_up_proj"},
                  {".block_sparse_moe.experts.{e}.w3.weight", ".mlp.experts.gate_up_proj"},
                  {".block_sparse_moe.experts.{e}.w2.weight", ".mlp.experts.down_proj"},
                  {".block_sparse_moe.", ".mlp."}};
  kimi.defaults = {R"({"vocab_size": 163840, "hidden_size": 2304, "intermediate_size": 9216,
      "moe_intermediate_size": 1024, "num_hidden_layers": 27, "num_attention_heads": 32, "num_key_value_heads": 32,
      "num_shared_experts": 1, "output_router_logits": false, "routed_scaling_factor": 2.446, "kv_lora_rank": 512,
      "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "num_expert_group": 1, "topk_group": 1,
      "num_experts_per_token": 8, "moe_renormalize": true, "hidden_act": "silu", "model_max_length": 1048576,
      "initializer_range": 0.02, "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "attention_bias": false,
      "attention_dropout": 0.0, "num_experts": 256, "linear_head_dim": 128, "linear_num_heads": 32,
      "linear_conv_kernel_dim": 4})"};
  kimi.read = read_kimi_linear;
  kimi.write = write_kimi_linear;
  kimi.gguf = {.name = "kimi-linear",
               .rules = {kGgufCommon, kGgufNorms, kGgufLatent, kGgufKimiDelta},
               .read = read_gguf_kimi_linear,
               .write = write_gguf_kimi_linear,
               .untied = true};
  return {kimi};
}

}  // namespace witan::models
