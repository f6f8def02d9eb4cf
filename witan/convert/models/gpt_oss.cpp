// gpt-oss: attention sinks, biases everywhere, gate and up interleaved, experts in MXFP4.
#include "witan/convert/config/gguf_model.h"
#include "witan/convert/config/hf_model.h"
#include "witan/convert/models/rules.h"

namespace witan::models {
namespace {

constexpr TensorRule kGptOssRules[] = {
    {"moe.router.weight", "layers.{l}.mlp.router.weight"},
    {"moe.router.bias", "layers.{l}.mlp.router.bias"},
    {.witan = "moe.experts.gate_up_proj_bias",
     .other = "layers.{l}.mlp.experts.gate_up_proj_bias",
     .interleaved = true},
    {"moe.experts.down_proj_bias", "layers.{l}.mlp.experts.down_proj_bias"},
    {.witan = "moe.experts.gate_up_proj",
     .other = "layers.{l}.mlp.experts.gate_up_proj",
     .transposed = true,
     .interleaved = true,
     .storage = ExpertStorage::fused},
    {.witan = "moe.experts.down_proj",
     .other = "layers.{l}.mlp.experts.down_proj",
     .transposed = true,
     .storage = ExpertStorage::fused},
    {.witan = "moe.experts.gate_up_proj",
     .other = "layers.{l}.mlp.experts.gate_up_proj_blocks",
     .interleaved = true,
     .storage = ExpertStorage::mxfp4},
    {.witan = "moe.experts.down_proj",
     .other = "layers.{l}.mlp.experts.down_proj_blocks",
     .storage = ExpertStorage::mxfp4},
};

constexpr GgufRule kGgufGptOss[] = {
    {"attention_norm.weight", "attn_norm.weight"},
    {"mlp_norm.weight", "post_attention_norm.weight"},
    {"attention.o_proj.bias", "attn_output.bias"},
    {"attention.sinks", "attn_sinks.weight"},
    {"moe.router.bias", "ffn_gate_inp.bias"},
    {"moe.experts.gate_up_proj_bias", "ffn_gate_exps.bias", 0, 2},
    {"moe.experts.gate_up_proj_bias", "ffn_up_exps.bias", 1, 2},
    {"moe.experts.down_proj_bias", "ffn_down_exps.bias"},
};

void read_gpt_oss(HfReader& in) {
  in.sizes();
  in.rope();
  in.experts(in.keys.integer("num_local_experts"), in.keys.integer("num_experts_per_tok"));
  in.keys.only("attention_bias", true, "gpt_oss's layers have biases");
  in.keys.only("hidden_act", "silu", "gpt_oss's layers have a function of their own");
  for (const char* key : {"add_bias_linear", "moe_expert_add_bias", "moe_router_add_bias"}) in.to.set(key, true);
  in.to.set("softmax_type", "learnable");
  in.to.set("activation_func_clamp_value", in.bound("swiglu_limit"));
  in.to.set("glu_activation_scale", in.keys.number("swiglu_alpha"));
  in.to.set("glu_linear_offset", 1.0);
  in.window(in.keys.nullable_integer("sliding_window").value_or(0),
            in.windowed_layers([](int64_t layer) { return layer % 2 == 0; }));
}

void write_gpt_oss(HfWriter& to) {
  to.sizes();
  to.out["hidden_act"] = "silu";
  to.out["attention_bias"] = true;
  to.rope();
  to.layer_types();
  to.sliding_window();
  to.experts("num_local_experts", "intermediate_size");
  to.out["swiglu_limit"] = to.model.mlp.activation_func_clamp_value;
  to.out["swiglu_alpha"] = to.model.mlp.glu_activation_scale;
}

void read_gguf_gpt_oss(GgufReader& in) {
  in.llama_like();
  if (Json& rope = in.out["rope_parameters"]; rope["rope_type"] == "yarn") rope["truncate"] = false;
  in.experts("num_local_experts");
  in.out["intermediate_size"] = in.integer("expert_feed_forward_length");
  in.out["sliding_window"] = in.integer("attention.sliding_window");
  in.only("expert_gating_func", static_cast<double>(kSoftmaxOfChosenGate),
          "gpt-oss's scores are a softmax of the chosen");
  in.check_experts();
}

void write_gguf_gpt_oss(GgufWriter& to) {
  to.llama_like();
  if (!to.experts()) return;
  to.put("expert_feed_forward_length", "intermediate_size");
  to.put("expert_gating_func", kSoftmaxOfChosenGate);
  if (to.hf.at("sliding_window").is_number()) to.put("attention.sliding_window", "sliding_window");
}

}  // namespace

std::vector<Architecture> gpt_oss() {
  Architecture gpt_oss = llama_like("gpt_oss", "GptOssForCausalLM");
  gpt_oss.rules.emplace_back(kGptOssRules);
  gpt_oss.defaults = {kLlamaDefaults, R"({"vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
      "num_hidden_layers": 36, "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
      "sliding_window": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 150000.0,
      "attention_bias": true,
      "rope_parameters": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                          "original_max_position_embeddings": 4096},
      "num_local_experts": 128, "num_experts_per_tok": 4, "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
      "output_router_logits": false, "router_aux_loss_coef": 0.001})"};
  gpt_oss.read = read_gpt_oss;
  gpt_oss.write = write_gpt_oss;
  gpt_oss.gguf = {.name = "gpt-oss",
                  .rules = {kGgufCommon, kGgufAttention, kGgufGptOss},
                  .read = read_gguf_gpt_oss,
                  .write = write_gguf_gpt_oss,
                  .untied = true};
  return {gpt_oss};
}

}  // namespace witan::models
