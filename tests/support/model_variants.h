// What models that people use have and plain ones have not, for small configurations that tests generate with.
#pragma once

#include <string>

#include "witan/model/config.h"

namespace witan::testing {

// Positions stretched beyond the eight of a model that learned no more (YaRN).
inline void add_stretched_positions(ModelConfig& config) {
  config.attention.rope_scaling_type = "yarn";
  config.attention.rotary_scaling_factor = 4;
  config.attention.original_max_position_embeddings = 8;
}

struct LatentSizes {
  int64_t q_rank, kv_rank, head, rotated_head, value_head;
};

// DeepSeek's attention.
inline void add_latent_attention(ModelConfig& config, const LatentSizes& sizes) {
  config.attention.multi_latent_attention = true;
  config.attention.q_lora_rank = sizes.q_rank;
  config.attention.kv_lora_rank = sizes.kv_rank;
  config.attention.latent_qk_head_dim = sizes.head;
  config.attention.qk_pos_emb_head_dim = sizes.rotated_head;
  config.attention.v_head_dim = sizes.value_head;
}

// DeepSeek-V3's choice of experts, behind dense layers, beside a shared expert.
inline void add_grouped_router(ModelConfig& config, const std::string& layers, int64_t shared_size) {
  config.moe.moe_layer_freq = layers;
  config.moe.moe_router_score_function = "sigmoid";
  config.moe.moe_router_enable_expert_bias = true;
  config.moe.moe_router_num_groups = 4;
  config.moe.moe_router_group_topk = 2;
  config.moe.moe_shared_expert_intermediate_size = shared_size;
}

// gpt-oss: a window in every other layer, sinks, biases everywhere, clamped SwiGLU.
inline void add_gpt_oss_features(ModelConfig& config, const std::string& window) {
  config.attention.window_size = window;
  config.attention.window_attn_skip_freq = "2";
  config.attention.softmax_type = "learnable";
  config.add_bias_linear = true;
  config.moe.moe_router_add_bias = config.moe.moe_expert_add_bias = true;
  config.mlp.activation_func_clamp_value = 2;
  config.mlp.glu_linear_offset = 1;
}

}  // namespace witan::testing
