// MiniMax M2: queries and keys are normalised over the full width, and part of each head rotates.
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr TensorRule kMinimaxRules[] = {
    {.witan = "moe.router.weight",
     .other = "layers.{l}.block_sparse_moe.gate.weight",
     .storage = ExpertStorage::single},
    {.witan = "moe.router.expert_bias",
     .other = "layers.{l}.block_sparse_moe.e_score_correction_bias",
     .storage = ExpertStorage::single},
    {.witan = "moe.router.weight", .other = "layers.{l}.mlp.gate.weight", .storage = ExpertStorage::fused},
    {.witan = "moe.router.expert_bias",
     .other = "layers.{l}.mlp.e_score_correction_bias",
     .storage = ExpertStorage::fused},
    {.witan = "moe.experts.gate_up_proj",
     .other = "layers.{l}.mlp.experts.gate_up_proj",
     .storage = ExpertStorage::fused},
    {.witan = "moe.experts.down_proj", .other = "layers.{l}.mlp.experts.down_proj", .storage = ExpertStorage::fused},
};

// Published files say by rotary_dim how many channels of a head rotate.
void read_rotated_channels(HfReader& in) {
  in.rope(HfRope::partial);
  if (!in.keys.has("rotary_dim")) return;
  const AttentionConfig& attention = in.to.model().attention;
  const auto rotated = static_cast<double>(in.keys.integer("rotary_dim")),
             channels = static_cast<double>(attention.qk_head_dim(in.hidden));
  const Json* rope = in.keys.find("rope_parameters");
  if (rope == nullptr || !rope->is_object() || !rope->contains("partial_rotary_factor"))
    in.to.set("rotary_percent", rotated / channels);
  else if (attention.rotary_percent * channels != rotated)
    in.keys.refuse("rotary_dim", "partial_rotary_factor in rope_parameters says otherwise");
}

void read_minimax_m2(HfReader& in) {
  in.sizes();
  in.activation();
  read_rotated_channels(in);
  in.to.set("qk_layernorm", true);
  in.to.set("qk_layernorm_full_width", true);
  const int64_t chosen = in.keys.integer("num_experts_per_tok");
  if (chosen < 2) in.keys.refuse("num_experts_per_tok", "Witan divides the scores of two experts or more by their sum");
  const int64_t experts = in.keys.integer("num_local_experts");
  if (experts == 0) in.keys.refuse("num_local_experts", "each layer has experts");
  in.keys.only("num_experts", experts, "it is num_local_experts by another name");
  in.experts(experts, chosen);
  in.to.set("moe_router_score_function", "sigmoid");
  in.to.set("moe_router_enable_expert_bias", true);
  in.to.set("moe_router_norm_topk_prob", "true");
  // Keys of the authors' own code.
  in.keys.only("scoring_func", "sigmoid", "MiniMax M2's scores are sigmoids");
  in.keys.only("use_routing_bias", true, "transformers' MiniMax M2 chooses by scores with a bias");
  in.keys.only("use_qk_norm", true, "transformers' MiniMax M2 normalises queries and keys");
  in.keys.only("qk_norm_type", "per_layer", "transformers' MiniMax M2 normalises all heads of a layer together");
  in.keys.only("router_jitter_noise", 0.0, "MiniMax multiplies what experts read too, Witan what the router reads");
  in.keys.only("shared_intermediate_size", 0, "transformers' MiniMax M2 has no shared experts");
  for (const char* key : {"use_mtp", "num_mtp_modules", "mtp_transformer_layers"}) in.keys.find(key);
  for (const char* key :
       {"attn_type_list", "layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"})
    in.keys.find(key);  // transformers passes over them
  in.no_attention_bias();
  in.no_mlp_bias();
  in.full_attention();
}

void write_minimax_m2(HfWriter& to) {
  to.sizes();
  to.rope();
  to.out["rope_parameters"]["partial_rotary_factor"] = to.model.attention.rotary_percent;
  to.experts("num_local_experts", "intermediate_size");
}

void read_gguf_minimax(GgufReader& in) {
  in.sizes();
  in.grouped_heads(true);
  in.rope();
  in.experts("num_local_experts");
  in.out["intermediate_size"] = in.integer("expert_feed_forward_length");
  in.only("expert_gating_func", static_cast<double>(kSigmoidGate), "MiniMax M2's scores are sigmoids");
  in.check_experts();
}

void write_gguf_minimax(GgufWriter& to) {
  to.llama_like();
  to.experts();
  to.put("expert_feed_forward_length", "intermediate_size");
  to.put("expert_gating_func", kSigmoidGate);
}

}  // namespace

std::vector<Architecture> minimax() {
  Architecture m2 = llama_like("minimax_m2", "MiniMaxM2ForCausalLM");
  m2.rules = {kModelRules, kPreNormRules, kAttentionRules, kBlockSparseExpertRules, kMinimaxRules};
  m2.defaults = {kLlamaDefaults, R"({"vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 1536,
      "num_hidden_layers": 62, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128,
      "max_position_embeddings": 196608, "rope_theta": 5000000.0, "num_experts_per_tok": 8, "num_local_experts": 256,
      "output_router_logits": false, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0})"};
  m2.read = read_minimax_m2;
  m2.write = write_minimax_m2;
  m2.partial_rotation = true;
  m2.gguf = {.name = "minimax-m2", .rules = {kGgufCommon, kGgufNorms, kGgufAttention}, .untied = true};
  m2.gguf.read = read_gguf_minimax;
  m2.gguf.write = write_gguf_minimax;
  return {m2};
}

}  // namespace witan::models
