#include "witan/convert/hf/hf_defaults.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace witan {
namespace {

// Of every architecture but GPT-2, unless its own object says otherwise.
constexpr std::string_view kLlamaLike = R"({
  "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
  "hidden_act": "silu", "max_position_embeddings": 2048, "initializer_range": 0.02, "rms_norm_eps": 1e-6,
  "tie_word_embeddings": false, "rope_theta": 10000.0, "attention_bias": false, "attention_dropout": 0.0,
  "mlp_bias": false})";

constexpr std::pair<std::string_view, std::string_view> kOwn[] = {
    {"llama", R"({"vocab_size": 32000})"},
    {"mistral", R"({"vocab_size": 32000, "intermediate_size": 14336, "num_key_value_heads": 8,
      "max_position_embeddings": 131072, "sliding_window": 4096})"},
    {"mixtral", R"({"vocab_size": 32000, "intermediate_size": 14336, "num_key_value_heads": 8,
      "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "num_experts_per_tok": 2,
      "num_local_experts": 8, "output_router_logits": false, "router_aux_loss_coef": 0.001,
      "router_jitter_noise": 0.0})"},
    {"qwen2", R"({"vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
      "max_position_embeddings": 32768, "use_sliding_window": false, "sliding_window": 4096,
      "max_window_layers": 28})"},
    {"qwen3", R"({"vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32, "head_dim": 128,
      "max_position_embeddings": 32768, "use_sliding_window": false, "sliding_window": 4096,
      "max_window_layers": 28})"},
    {"qwen3_moe", R"({"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
      "num_key_value_heads": 4, "max_position_embeddings": 32768, "use_sliding_window": false, "sliding_window": 4096,
      "decoder_sparse_step": 1, "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_experts": 128,
      "norm_topk_prob": false, "output_router_logits": false, "router_aux_loss_coef": 0.001})"},
    {"olmoe", R"({"vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16,
      "num_attention_heads": 16, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "num_experts_per_tok": 8,
      "num_experts": 64, "norm_topk_prob": false, "output_router_logits": false, "router_aux_loss_coef": 0.01})"},
    {"olmo2", R"({"vocab_size": 50304, "rms_norm_eps": 1e-5})"},
    {"olmo3", R"({"vocab_size": 50304, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "sliding_window": 4096})"},
    {"gpt_oss", R"({"vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
      "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "sliding_window": 128,
      "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "attention_bias": true,
      "rope_parameters": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                          "original_max_position_embeddings": 4096},
      "num_local_experts": 128, "num_experts_per_tok": 4, "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
      "output_router_logits": false, "router_aux_loss_coef": 0.001})"},
    {"deepseek_v2", R"({"vocab_size": 102400, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2,
      "moe_intermediate_size": 1407, "first_k_dense_replace": 0, "routed_scaling_factor": 1.0,
      "topk_method": "greedy", "norm_topk_prob": false, "output_router_logits": false})"},
    {"deepseek_v3", R"({"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
      "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
      "max_position_embeddings": 4096, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64, "v_head_dim": 128, "rope_interleave": true, "n_routed_experts": 256,
      "n_shared_experts": 1, "moe_intermediate_size": 2048, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
      "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4, "norm_topk_prob": true,
      "output_router_logits": false, "num_nextn_predict_layers": 1})"},
    {"phi3", R"({"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
      "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "resid_pdrop": 0.0, "embd_pdrop": 0.0})"},
    {"gpt2", R"({"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
      "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
      "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "scale_attn_weights": true,
      "scale_attn_by_inverse_layer_idx": false, "add_cross_attention": false, "tie_word_embeddings": true})"},
};

std::map<std::string, Json, std::less<>> all_defaults() {
  std::map<std::string, Json, std::less<>> all;
  for (const auto& [type, own] : kOwn) {
    Json& defaults = all[std::string(type)];
    defaults = type == "gpt2" ? Json::object() : Json::parse(kLlamaLike);
    defaults.update(Json::parse(own));
  }
  return all;
}

}  // namespace

const Json& hf_defaults(std::string_view model_type) {
  static const auto all = all_defaults();
  return all.find(model_type)->second;
}

}  // namespace witan
