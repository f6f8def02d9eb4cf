// HunYuan: queries and keys are normalised after they rotate.
#include <algorithm>
#include <span>

#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr TensorRule kHunyuanNormRules[] = {
    {"attention.q_norm.weight", "layers.{l}.self_attn.query_layernorm.weight"},
    {"attention.k_norm.weight", "layers.{l}.self_attn.key_layernorm.weight"},
};

constexpr TensorRule kHunyuanRouterRules[] = {
    {"moe.router.weight", "layers.{l}.mlp.gate.wg.weight"},
    {"moe.shared_experts.gate_up_proj.weight", "layers.{l}.mlp.shared_mlp.gate_proj.weight", 0, 2},
    {"moe.shared_experts.gate_up_proj.weight", "layers.{l}.mlp.shared_mlp.up_proj.weight", 1, 2},
    {"moe.shared_experts.down_proj.weight", "layers.{l}.mlp.shared_mlp.down_proj.weight"},
};

// The projections of attention and the sinks, but not the norms.
std::vector<TensorRule> without_norms() {
  std::vector<TensorRule> rules;
  for (const TensorRule& rule : kAttentionRules)
    if (!rule.witan.ends_with("_norm.weight")) rules.push_back(rule);
  return rules;
}

// The experts, but not the router.
std::vector<TensorRule> experts_alone() {
  std::vector<TensorRule> rules;
  for (const TensorRule& rule : kMoeRules)
    if (rule.witan.starts_with("moe.experts.")) rules.push_back(rule);
  return rules;
}

constexpr std::string_view kHunyuanDefaults = R"({"vocab_size": 290943, "rms_norm_eps": 1e-5})";

void read_hunyuan(HfReader& in) {
  in.sizes();
  in.activation();
  in.rope(HfRope::ntk_alpha);
  in.to.set("qk_layernorm", true);
  in.to.set("qk_layernorm_after_rope", true);
  in.attention_bias();
  in.no_mlp_bias();
  in.full_attention();
  // Keys of the authors' own code.
  for (const char* key : {"use_qk_norm", "norm_topk_prob"})
    in.keys.only(key, true, "transformers' models of this type do so, whatever this key says");
  in.keys.only("use_cla", false, "transformers' models of this type share no keys and values between layers");
}

void write_hunyuan(HfWriter& to) {
  to.sizes();
  to.out["attention_bias"] = to.has_attention_biases();
  to.rope();
}

// A number, or a list with the same number for each layer.
int64_t same_in_layers(HfReader& in, const char* key) {
  const Json* value = in.keys.find(key);
  if (value == nullptr || !value->is_array()) return in.keys.integer(key);
  const auto whole = [](const Json& one) { return one.is_number_integer() && one >= 0; };
  if (value->empty() || static_cast<int64_t>(value->size()) < in.layers || !std::ranges::all_of(*value, whole) ||
      std::ranges::adjacent_find(*value, std::not_equal_to<>()) != value->end())
    in.keys.refuse(key, "Witan's layers are alike in this: give each the same number");
  return value->front().get<int64_t>();
}

void read_hunyuan_moe(HfReader& in) {
  read_hunyuan(in);
  const int64_t size = in.keys.integer("intermediate_size");
  in.experts(same_in_layers(in, "num_experts"), same_in_layers(in, "moe_topk"));
  in.to.set("moe_shared_expert_intermediate_size", size);
  for (const auto& [key, value] :
       {std::pair{"moe_intermediate_size", size}, std::pair{"num_shared_expert", int64_t{1}}})
    if (in.keys.has(key) && same_in_layers(in, key) != value)
      in.keys.refuse(key, "transformers' experts and the shared one are intermediate_size wide");
}

void write_hunyuan_moe(HfWriter& to) {
  write_hunyuan(to);
  to.out["num_experts"] = to.model.moe.num_experts;
  to.out["moe_topk"] = to.model.moe.moe_router_topk;
}

// ---- GGUF files

void read_gguf_hunyuan_moe(GgufReader& in) {
  in.llama_like();
  in.out["num_experts"] = in.integer("expert_count");
  in.out["moe_topk"] = in.integer("expert_used_count");
  in.only("expert_shared_count", 1, "HunYuan has one shared expert");
  const auto size = in.out["intermediate_size"].get<double>();
  for (const char* key : {"expert_feed_forward_length", "expert_shared_feed_forward_length"})
    in.only(key, size, "HunYuan's experts and the shared one are feed_forward_length wide");
  in.check_experts();
}

void write_gguf_hunyuan_moe(GgufWriter& to) {
  to.llama_like();
  to.experts();
  to.put("expert_shared_count", 1);
  for (const char* key : {"expert_feed_forward_length", "expert_shared_feed_forward_length"})
    to.put(key, "intermediate_size");
}

// A base that alpha raised is rounded to the file's float32, in which llama.cpp computes.
GgufArchitecture hunyuan_gguf(std::string_view name) {
  return {
      .name = name,
      .rules = {kGgufCommon, kGgufNorms, kGgufAttention},
      .read =
          [](GgufReader& in) {
            in.llama_like();
            in.check_experts();
          },
      .write = [](GgufWriter& to) { to.llama_like(); },
      .approximate = [](ModelConfig& model) { model.attention.rotary_base = gguf_real(model.attention.rotary_base); }};
}

Architecture hunyuan_architecture(std::string_view model_type, std::string_view name) {
  static const std::vector<TensorRule> attention = without_norms();
  Architecture hunyuan = llama_like(model_type, name);
  hunyuan.rules = {kModelRules, kPreNormRules, attention, kHunyuanNormRules, kMlpRules};
  hunyuan.defaults = {kLlamaDefaults, kHunyuanDefaults};
  return hunyuan;
}

Architecture hunyuan_moe_architecture() {
  static const std::vector<TensorRule> experts = experts_alone();
  Architecture moe = hunyuan_architecture("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM");
  moe.rules.insert(moe.rules.end(), {experts, kHunyuanRouterRules});
  moe.defaults.emplace_back(R"({"output_router_logits": false})");
  moe.read = read_hunyuan_moe;
  moe.write = write_hunyuan_moe;
  moe.gguf = hunyuan_gguf("hunyuan-moe");
  moe.gguf.read = read_gguf_hunyuan_moe;
  moe.gguf.write = write_gguf_hunyuan_moe;
  return moe;
}

}  // namespace

std::vector<Architecture> hunyuan() {
  Architecture dense = hunyuan_architecture("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM");
  dense.read = [](HfReader& in) {
    read_hunyuan(in);
    in.dense();
  };
  dense.write = write_hunyuan;
  dense.gguf = hunyuan_gguf("hunyuan-dense");
  return {dense, hunyuan_moe_architecture()};
}

}  // namespace witan::models
