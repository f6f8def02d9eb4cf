// DeepSeek-V2 and V3: multi-head latent attention, shared experts, groups of experts, multi-token prediction.
#include <algorithm>

#include "witan/base/error.h"
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr TensorRule kLatentRules[] = {
    {"attention.q_proj.weight", "layers.{l}.self_attn.q_proj.weight"},
    {"attention.q_a_proj.weight", "layers.{l}.self_attn.q_a_proj.weight"},
    {"attention.q_a_layernorm.weight", "layers.{l}.self_attn.q_a_layernorm.weight"},
    {"attention.q_b_proj.weight", "layers.{l}.self_attn.q_b_proj.weight"},
    {"attention.kv_a_proj_with_mqa.weight", "layers.{l}.self_attn.kv_a_proj_with_mqa.weight"},
    {"attention.kv_a_layernorm.weight", "layers.{l}.self_attn.kv_a_layernorm.weight"},
    {"attention.kv_b_proj.weight", "layers.{l}.self_attn.kv_b_proj.weight"},
    {"attention.o_proj.weight", "layers.{l}.self_attn.o_proj.weight"},
};

constexpr TensorRule kSharedExpertRules[] = {
    {"moe.router.expert_bias", "layers.{l}.mlp.gate.e_score_correction_bias"},
    {"moe.shared_experts.gate_up_proj.weight", "layers.{l}.mlp.shared_experts.gate_proj.weight", 0, 2},
    {"moe.shared_experts.gate_up_proj.weight", "layers.{l}.mlp.shared_experts.up_proj.weight", 1, 2},
    {"moe.shared_experts.down_proj.weight", "layers.{l}.mlp.shared_experts.down_proj.weight"},
};

// A module of multi-token prediction, beside its block.
constexpr TensorRule kMtpRules[] = {
    {"enorm.weight", "layers.{l}.enorm.weight"},
    {"hnorm.weight", "layers.{l}.hnorm.weight"},
    {"eh_proj.weight", "layers.{l}.eh_proj.weight"},
    {"norm.weight", "layers.{l}.shared_head.norm.weight"},
};

constexpr GgufRule kGgufLatent[] = {
    {"attention.q_proj.weight", "attn_q.weight"},
    {"attention.q_a_proj.weight", "attn_q_a.weight"},
    {"attention.q_a_layernorm.weight", "attn_q_a_norm.weight"},
    {"attention.q_b_proj.weight", "attn_q_b.weight"},
    {"attention.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"},
    {"attention.kv_a_layernorm.weight", "attn_kv_a_norm.weight"},
    {.witan = "attention.kv_b_proj.weight", .other = "attn_kv_b.weight", .latent = LatentStorage::joined},
    {.witan = "attention.kv_b_proj.weight",
     .other = "attn_k_b.weight",
     .rows = GgufRows::latent_keys,
     .latent = LatentStorage::divided},
    {.witan = "attention.kv_b_proj.weight",
     .other = "attn_v_b.weight",
     .rows = GgufRows::latent_values,
     .latent = LatentStorage::divided},
};

// ---- config.json

void read_latent(HfReader& in) {
  in.sizes(HfHeads::latent);
  in.activation();
  in.rope();
  in.to.set("multi_latent_attention", true);
  if (const auto rank = in.keys.nullable_integer("q_lora_rank")) in.to.set("q_lora_rank", *rank);
  in.to.set("kv_lora_rank", in.keys.integer("kv_lora_rank"));
  const int64_t nope = in.keys.integer("qk_nope_head_dim"), rotary = in.keys.integer("qk_rope_head_dim");
  in.to.set("qk_head_dim", nope);
  in.to.set("qk_pos_emb_head_dim", rotary);
  in.to.set("v_head_dim", in.keys.integer("v_head_dim"));
  in.keys.only("qk_head_dim", nope + rotary, "must be qk_nope_head_dim + qk_rope_head_dim");
  in.keys.only("head_dim", rotary, "must be qk_rope_head_dim, the channels that rotate");
}

// False if no layer has experts; the other keys of experts say nothing then.
bool read_deepseek_experts(HfReader& in) {
  const int64_t dense = in.keys.integer("first_k_dense_replace"), step = in.keys.integer("moe_layer_freq", 1);
  std::vector<bool> moe;
  for (int64_t layer = 0; layer < in.layers; ++layer) moe.push_back(layer >= dense && step > 0 && layer % step == 0);
  if (in.keys.is_null("n_routed_experts") || std::ranges::count(moe, true) == 0) {
    in.dense();
    for (const char* key :
         {"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts",
          "routed_scaling_factor", "scoring_func", "topk_method", "norm_topk_prob", "n_group", "topk_group"})
      in.keys.find(key);
    return false;
  }
  in.experts(in.keys.integer("n_routed_experts"), in.keys.integer("num_experts_per_tok"));
  const int64_t size = in.keys.integer("moe_intermediate_size"), shared = in.keys.integer("n_shared_experts");
  in.to.set("moe_ffn_hidden_size", size);
  if (shared > 0) in.to.set("moe_shared_expert_intermediate_size", shared * size);
  if (const double scale = in.keys.number("routed_scaling_factor"); scale != 1)
    in.to.set("moe_router_topk_scaling_factor", scale);
  in.moe_layers(moe, "first_k_dense_replace");
  return true;
}

// A group's score is the sum of so many of its best experts' scores.
void read_expert_groups(HfReader& in, int64_t scores) {
  const int64_t count = in.keys.integer("n_group"), chosen = in.keys.integer("topk_group");
  if (count <= 1) return;
  in.to.set("moe_router_num_groups", count);
  in.to.set("moe_router_group_topk", chosen);
  in.to.set("moe_router_group_score_topk", scores);
}

void read_v2_router(HfReader& in) {
  in.keys.only("norm_topk_prob", false, "transformers' DeepSeek-V2 does not divide by the sum, whatever this says");
  in.keys.only("scoring_func", "softmax", "DeepSeek-V2's scores are a softmax");
  in.to.set("moe_router_pre_softmax", true);
  const std::string method = in.keys.text("topk_method");
  if (method == "group_limited_greedy")
    read_expert_groups(in, 1);
  else if (method != "greedy")
    in.keys.refuse("topk_method", "DeepSeek-V2 chooses by greedy or group_limited_greedy");
  in.keys.find("n_group");
  in.keys.find("topk_group");
}

void read_v3_router(HfReader& in) {
  in.keys.only("scoring_func", "sigmoid", "DeepSeek-V3's scores are sigmoids");
  in.keys.only("topk_method", "noaux_tc", "DeepSeek-V3 chooses by scores with a bias");
  in.to.set("moe_router_score_function", "sigmoid");
  in.to.set("moe_router_enable_expert_bias", true);
  in.to.set("moe_router_norm_topk_prob", in.keys.truthy("norm_topk_prob") ? "true" : "false");
  read_expert_groups(in, 2);
}

void read_deepseek_rest(HfReader& in) {
  in.no_attention_bias("Witan's latent attention has no biases");
  in.no_mlp_bias();
  in.full_attention();
}

void read_deepseek_v2(HfReader& in) {
  read_latent(in);
  in.to.set("rotary_interleaved", true);
  in.keys.find("rope_interleave");  // it has no effect there
  if (read_deepseek_experts(in)) read_v2_router(in);
  read_deepseek_rest(in);
}

void read_deepseek_v3(HfReader& in) {
  read_latent(in);
  if (in.keys.truthy("rope_interleave")) in.to.set("rotary_interleaved", true);
  in.model.mtp_layers = in.keys.integer("num_nextn_predict_layers");
  if (read_deepseek_experts(in)) read_v3_router(in);
  read_deepseek_rest(in);
}

// All but what their routers differ in; false if no layer has experts.
bool write_deepseek(HfWriter& to) {
  const AttentionConfig& attention = to.model.attention;
  HfWriter::Out& out = to.out;
  to.sizes(HfHeads::latent);
  out["attention_bias"] = false;
  to.rope();
  out["q_lora_rank"] = attention.q_lora_rank > 0 ? HfWriter::Out(attention.q_lora_rank) : HfWriter::Out();
  out["kv_lora_rank"] = attention.kv_lora_rank;
  out["qk_nope_head_dim"] = attention.latent_qk_head_dim;
  out["qk_rope_head_dim"] = attention.qk_pos_emb_head_dim;
  out["v_head_dim"] = attention.value_head_dim(to.model.hidden_size);
  out["rope_interleave"] = attention.rotary_interleaved;
  const auto first = std::ranges::find(to.layers, true, &LayerSpec::moe);
  out["first_k_dense_replace"] = first - to.layers.begin();
  if (to.model.mtp_num_layers > 0) out["num_nextn_predict_layers"] = to.model.mtp_num_layers;
  const MoeConfig& moe = to.model.moe;
  if (moe.num_experts == 0) return false;
  to.experts("n_routed_experts", "moe_intermediate_size");
  out["n_shared_experts"] = moe.moe_shared_expert_intermediate_size / std::max<int64_t>(moe.moe_ffn_hidden_size, 1);
  out["routed_scaling_factor"] = moe.moe_router_topk_scaling_factor;
  out["n_group"] = std::max<int64_t>(moe.moe_router_num_groups, 1);
  out["topk_group"] = std::max<int64_t>(moe.moe_router_group_topk, 1);
  return true;
}

// ---- GGUF files

// 0.707, not 0.70700001.
double as_short_decimal(double value) {
  GgufMetadata one;
  one.put_f32("value", static_cast<double>(static_cast<float>(value)));
  return *one.number("value");
}

// YaRN's factor of attention, which llama.cpp's "deepseek2" always scales by.
void read_yarn_magnitude(GgufReader& in) {
  Json& rope = in.out["rope_parameters"];
  if (rope["rope_type"] != "yarn") return;
  const double multiplier = in.number("rope.scaling.yarn_log_multiplier", 0.0);
  require<ConfigError>(multiplier > 0, in.source(), ": ", in.key("rope.scaling.yarn_log_multiplier"),
                       " is missing, by which llama.cpp scales the attention of this architecture");
  rope["mscale"] = rope["mscale_all_dim"] = as_short_decimal(multiplier / kMscaleUnit);
}

void read_gguf_deepseek(GgufReader& in, bool v3) {
  in.sizes();
  in.integer("attention.head_count_kv", 1);  // that of the latent, not of the model's heads
  in.out["num_key_value_heads"] = in.out["num_attention_heads"];
  in.rope();
  read_yarn_magnitude(in);
  in.out["q_lora_rank"] =
      in.find("attention.q_lora_rank") != nullptr ? Json(in.integer("attention.q_lora_rank")) : Json();
  in.out["kv_lora_rank"] = in.integer("attention.kv_lora_rank");
  const int64_t rotary = in.integer("rope.dimension_count"), joined = in.integer("attention.key_length", 0),
                values = in.integer("attention.value_length", 0);
  in.out["qk_rope_head_dim"] = rotary;
  in.out["qk_nope_head_dim"] = in.integer("attention.key_length_mla", joined) - rotary;
  in.out["v_head_dim"] = in.integer("attention.value_length_mla", values);
  in.out["n_routed_experts"] = in.integer("expert_count");
  in.out["num_experts_per_tok"] = in.integer("expert_used_count");
  in.out["n_shared_experts"] = in.integer("expert_shared_count", 0);
  in.out["moe_intermediate_size"] = in.integer("expert_feed_forward_length");
  in.out["first_k_dense_replace"] = in.integer("leading_dense_block_count", 0);
  in.out["routed_scaling_factor"] = in.number("expert_weights_scale", 1.0);
  in.out["norm_topk_prob"] = in.flag("expert_weights_norm").value_or(false);
  const int64_t groups = in.integer("expert_group_count", 1), chosen = in.integer("expert_group_used_count", 1);
  require<ConfigError>(groups <= 1 || v3, in.source(), ": ", in.key("expert_group_count"), " = ", groups,
                       ": llama.cpp scores groups of experts as DeepSeek-V3 does, not as V2");
  in.out["n_group"] = std::max<int64_t>(groups, 1);
  in.out["topk_group"] = std::max<int64_t>(chosen, 1);
  in.only("nextn_predict_layers", 0, "Witan reads no layers that predict further tokens from GGUF files");
  in.no_experts_chosen();
}

// llama.cpp computes attention with one head of keys and values that is as wide as the latent.
void write_gguf_deepseek(GgufWriter& to) {
  to.sizes();
  to.rope();
  const Json& hf = to.hf;
  const int64_t rank = hf.at("kv_lora_rank").get<int64_t>(), rotary = hf.at("qk_rope_head_dim").get<int64_t>();
  to.put("attention.head_count_kv", 1);
  require<ConfigError>(to.model.moe.num_experts > 0,
                       "num_experts = 0: llama.cpp's model of type deepseek2 has experts: export --format hf");
  require<ConfigError>(hf.at("q_lora_rank").is_number() || to.model.num_layers == 26 || to.model.num_layers == 27,
                       "q_lora_rank = 0: llama.cpp's model of type deepseek2 has queries that are projected at once "
                       "only where it has 26 or 27 layers (DeepSeek-V2-Lite): export --format hf");
  if (hf.at("q_lora_rank").is_number()) to.put("attention.q_lora_rank", "q_lora_rank");
  to.put("attention.kv_lora_rank", rank);
  to.put("attention.key_length", rank + rotary);
  to.put("attention.value_length", rank);
  to.put("attention.key_length_mla", hf.at("qk_nope_head_dim").get<int64_t>() + rotary);
  to.put("attention.value_length_mla", "v_head_dim");
  to.put("rope.dimension_count", rotary);
  to.put("leading_dense_block_count", "first_k_dense_replace");
  to.experts();
  to.put("expert_feed_forward_length", "moe_intermediate_size");
  to.put("expert_shared_count", "n_shared_experts");
  to.put_real("expert_weights_scale", hf.at("routed_scaling_factor").get<double>());
  to.out.put_flag(to.key("expert_weights_norm"), hf.value("norm_topk_prob", false));
}

void write_gguf_deepseek_v3(GgufWriter& to) {
  write_gguf_deepseek(to);
  to.put("expert_gating_func", kSigmoidGate);
  if (to.hf.at("n_group").get<int64_t>() <= 1) return;
  to.put("expert_group_count", "n_group");
  to.put("expert_group_used_count", "topk_group");
}

Architecture deepseek_v2_architecture() {
  Architecture v2{"deepseek_v2",
                  "DeepseekV2ForCausalLM",
                  "model.",
                  {kModelRules, kPreNormRules, kLatentRules, kMlpRules, kMoeRules, kSharedExpertRules}};
  v2.mtp_layers = true;
  v2.defaults = {kLlamaDefaults, R"({"vocab_size": 102400, "kv_lora_rank": 512, "q_lora_rank": 1536,
      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64,
      "n_shared_experts": 2, "moe_intermediate_size": 1407, "first_k_dense_replace": 0, "routed_scaling_factor": 1.0,
      "topk_method": "greedy", "norm_topk_prob": false, "output_router_logits": false})"};
  v2.read = read_deepseek_v2;
  v2.write = [](HfWriter& to) {
    if (write_deepseek(to))
      to.out["topk_method"] = to.model.moe.moe_router_num_groups > 0 ? "group_limited_greedy" : "greedy";
  };
  v2.gguf = {.name = "deepseek2", .rules = {kGgufCommon, kGgufNorms, kGgufLatent}, .untied = true};
  v2.gguf.matches = [](GgufReader& in) { return in.integer("expert_gating_func", kSoftmaxGate) != kSigmoidGate; };
  v2.gguf.read = [](GgufReader& in) { read_gguf_deepseek(in, false); };
  v2.gguf.write = [](GgufWriter& to) {
    write_gguf_deepseek(to);
    to.put("expert_gating_func", kSoftmaxGate);
  };
  return v2;
}

Architecture deepseek_v3_architecture() {
  Architecture v3 = deepseek_v2_architecture();
  v3.model_type = "deepseek_v3";
  v3.name = "DeepseekV3ForCausalLM";
  v3.rules.emplace_back(kMtpRules);
  v3.defaults = {kLlamaDefaults, R"({"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
      "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
      "max_position_embeddings": 4096, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64, "v_head_dim": 128, "rope_interleave": true, "n_routed_experts": 256,
      "n_shared_experts": 1, "moe_intermediate_size": 2048, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
      "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4, "norm_topk_prob": true,
      "output_router_logits": false, "num_nextn_predict_layers": 1})"};
  v3.read = read_deepseek_v3;
  v3.write = [](HfWriter& to) {
    if (write_deepseek(to)) to.out["norm_topk_prob"] = to.model.moe.moe_router_norm_topk_prob != "false";
  };
  v3.gguf.matches = [](GgufReader& in) { return in.integer("expert_gating_func", kSoftmaxGate) == kSigmoidGate; };
  v3.gguf.read = [](GgufReader& in) { read_gguf_deepseek(in, true); };
  v3.gguf.write = write_gguf_deepseek_v3;
  return v3;
}

}  // namespace

std::vector<Architecture> deepseek() {
  return {deepseek_v2_architecture(), deepseek_v3_architecture()};
}

}  // namespace witan::models
