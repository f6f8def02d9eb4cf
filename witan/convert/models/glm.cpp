// GLM-4.5 to 4.7, of whose heads half the channels rotate, and Solar Open, which has the same experts in every layer.
#include <algorithm>

#include "witan/base/error.h"
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr GgufRule kGgufGlmNorms[] = {
    {"attention_norm.weight", "attn_norm.weight"},
    {"mlp_norm.weight", "post_attention_norm.weight"},
};

constexpr GgufRule kGgufMtp[] = {
    {"enorm.weight", "nextn.enorm.weight"},
    {"hnorm.weight", "nextn.hnorm.weight"},
    {"eh_proj.weight", "nextn.eh_proj.weight"},
    {"norm.weight", "nextn.shared_head_norm.weight"},
};

// Queries, keys and values may have biases, unlike the output projection.
void read_glm_attention(HfReader& in, HfRope kind) {
  // transformers rounds heads of a broken width down, and its configuration class has such heads by default.
  if (!in.keys.has("head_dim") &&
      in.keys.integer("hidden_size") % std::max<int64_t>(in.keys.integer("num_attention_heads"), 1) != 0)
    in.keys.integer("head_dim");
  in.sizes();
  in.activation();
  in.rope(kind);
  if (in.keys.flag("attention_bias")) in.to.set("add_qkv_bias", true);
}

void write_glm_attention(HfWriter& to) {
  to.sizes();
  to.out["attention_bias"] = to.model.attention.add_qkv_bias;
  to.rope();
}

// ---- GLM

void read_glm4_moe(HfReader& in) {
  read_glm_attention(in, HfRope::partial);
  if (in.keys.flag("use_qk_norm")) in.to.set("qk_layernorm", true);
  const char* const mtp = in.keys.has("num_mtp_layers") ? "num_mtp_layers" : "num_nextn_predict_layers";
  in.model.mtp_layers = in.keys.integer(mtp);
  if (in.routed_experts(in.layers_after_dense(), "first_k_dense_replace")) in.sigmoid_router();
  in.no_mlp_bias();
  in.full_attention();
}

void write_glm4_moe(HfWriter& to) {
  write_glm_attention(to);
  to.out["rope_parameters"]["partial_rotary_factor"] = to.model.attention.rotary_percent;
  to.out["use_qk_norm"] = to.model.attention.qk_layernorm;
  to.out["num_nextn_predict_layers"] = to.model.mtp_num_layers;
  to.dense_layers_first();
  if (to.routed_experts()) to.sigmoid_router();
}

void read_gguf_glm(GgufReader& in) {
  in.sizes();
  in.mtp_layers();
  in.grouped_heads(true);
  in.rope();
  in.out["attention_bias"] = in.facts().qkv_biases;
  in.out["use_qk_norm"] = in.facts().qk_norms;
  in.routed_experts();
  in.only("expert_gating_func", static_cast<double>(kSigmoidGate), "GLM's scores are sigmoids");
}

void write_gguf_glm(GgufWriter& to) {
  to.need_experts();
  to.sizes();
  to.mtp_layers();
  to.grouped_heads();
  to.rope();
  to.routed_experts();
  to.put("expert_gating_func", kSigmoidGate);
  to.expert_groups();
}

Architecture glm4_moe_architecture() {
  Architecture glm = llama_like("glm4_moe", "Glm4MoeForCausalLM");
  glm.rules.insert(glm.rules.end(), {kMoeRules, kRouterBiasRules, kSharedExpertRules, kMtpRules});
  glm.defaults = {kLlamaDefaults, R"({"vocab_size": 151552, "intermediate_size": 10944, "num_hidden_layers": 46,
      "num_attention_heads": 96, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
      "partial_rotary_factor": 0.5, "use_qk_norm": false, "moe_intermediate_size": 1408, "num_experts_per_tok": 8,
      "n_shared_experts": 1, "n_routed_experts": 128, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
      "first_k_dense_replace": 1, "norm_topk_prob": true, "output_router_logits": false,
      "num_nextn_predict_layers": 1})"};
  glm.read = read_glm4_moe;
  glm.write = write_glm4_moe;
  glm.partial_rotation = true;
  glm.mtp_layers = true;
  glm.gguf = {.name = "glm4moe", .rules = {kGgufCommon, kGgufGlmNorms, kGgufAttention, kGgufMtp}};
  // Files of Solar Open are read as GLM's.
  glm.gguf.matches = [](GgufReader& in) { return in.find(kGgufSections) == nullptr; };
  glm.gguf.read = read_gguf_glm;
  glm.gguf.write = write_gguf_glm;
  return glm;
}

// ---- The text decoder of GLM-4.5V and 4.6V

void read_glm4v_moe(HfReader& in) {
  read_glm_attention(in, HfRope::partial_sections);
  if (in.routed_experts(in.layers_after_dense(), "first_k_dense_replace")) in.sigmoid_router();
  in.no_mlp_bias();
  in.full_attention();
}

void write_glm4v_moe(HfWriter& to) {
  write_glm_attention(to);
  to.out["rope_parameters"]["partial_rotary_factor"] = to.model.attention.rotary_percent;
  to.dense_layers_first();
  if (to.routed_experts()) to.sigmoid_router();
}

// Without layers of multi-token prediction, which transformers has no place for in models of this type.
void read_gguf_glm4v(GgufReader& in) {
  read_gguf_glm(in);
  in.only("nextn_predict_layers", 0, "models of this type have no layers of multi-token prediction");
  in.out.erase("num_nextn_predict_layers");
  require<ConfigError>(!in.facts().qk_norms, in.source(), ": blk.0.attn_q_norm.weight: models of this type have no ",
                       "norms of queries and keys");
  in.out.erase("use_qk_norm");
}

void write_gguf_glm4v(GgufWriter& to) {
  write_gguf_glm(to);
  to.put_list(kGgufSections, {8, 12, 12, 0});
}

Architecture glm4v_moe_architecture() {
  Architecture glm = glm4_moe_architecture();
  glm.model_type = "glm4v_moe_text";
  glm.name = "Glm4vMoeForConditionalGeneration";
  glm.other_types = {"Glm4vMoe_text"};  // as transformers 4.57 and 5.0 write it
  glm.rules = {kModelRules, kPreNormRules, kAttentionRules, kMlpRules, kMoeRules, kRouterBiasRules, kSharedExpertRules};
  glm.mtp_layers = false;
  glm.defaults.emplace_back(R"({"vocab_size": 151424, "max_position_embeddings": 65536, "attention_bias": true})");
  glm.read = read_glm4v_moe;
  glm.write = write_glm4v_moe;
  glm.gguf = {.name = "glm4moe", .rules = {kGgufCommon, kGgufGlmNorms, kGgufAttention}, .write = write_gguf_glm4v};
  glm.gguf.matches = [](GgufReader& in) { return in.find(kGgufSections) != nullptr; };
  glm.gguf.read = read_gguf_glm4v;
  return glm;
}

// ---- Solar Open

void read_solar_open(HfReader& in) {
  read_glm_attention(in, HfRope::plain);
  if (in.routed_experts(std::vector<bool>(static_cast<size_t>(in.layers), true), "num_hidden_layers"))
    in.sigmoid_router();
  in.no_mlp_bias();
  in.full_attention();
}

Architecture solar_open_architecture() {
  Architecture solar = glm4_moe_architecture();
  solar.model_type = "solar_open";
  solar.name = "SolarOpenForCausalLM";
  solar.mtp_layers = solar.partial_rotation = false;
  solar.defaults = {kLlamaDefaults, R"({"vocab_size": 196608, "intermediate_size": 10240, "num_hidden_layers": 48,
      "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "moe_intermediate_size": 1280, "num_experts_per_tok": 8,
      "n_shared_experts": 1, "n_routed_experts": 128, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
      "norm_topk_prob": true, "output_router_logits": false})"};
  solar.read = read_solar_open;
  solar.write = [](HfWriter& to) {
    write_glm_attention(to);
    if (to.routed_experts()) to.sigmoid_router();
  };
  solar.gguf.matches = [](GgufReader&) { return false; };  // llama.cpp's files of both are alike
  solar.gguf.read = nullptr;
  return solar;
}

}  // namespace

std::vector<Architecture> glm() {
  return {glm4_moe_architecture(), glm4v_moe_architecture(), solar_open_architecture()};
}

}  // namespace witan::models
