// Turns small configurations into variants with the features of published models.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "support/running_mean.h"
#include "witan/model/config.h"

namespace witan::testing {

// YaRN, extending eight original positions.
inline void add_stretched_positions(ModelConfig& config) {
  config.attention.rope_scaling_type = "yarn";
  config.attention.rotary_scaling_factor = 4;
  config.attention.original_max_position_embeddings = 8;
}

struct LatentSizes {
  int64_t q_rank, kv_rank, head, rotated_head, value_head;
};

// DeepSeek's multi-head latent attention.
inline void add_latent_attention(ModelConfig& config, const LatentSizes& sizes) {
  config.attention.multi_latent_attention = true;
  config.attention.q_lora_rank = sizes.q_rank;
  config.attention.kv_lora_rank = sizes.kv_rank;
  config.attention.latent_qk_head_dim = sizes.head;
  config.attention.qk_pos_emb_head_dim = sizes.rotated_head;
  config.attention.v_head_dim = sizes.value_head;
}

// DeepSeek-V3's group-limited routing, after dense layers and beside a shared expert.
inline void add_grouped_router(ModelConfig& config, const std::string& layers, int64_t shared_size) {
  config.moe.moe_layer_freq = layers;
  config.moe.moe_router_score_function = "sigmoid";
  config.moe.moe_router_enable_expert_bias = true;
  config.moe.moe_router_num_groups = 4;
  config.moe.moe_router_group_topk = 2;
  config.moe.moe_shared_expert_intermediate_size = shared_size;
}

// gpt-oss: sliding windows in every other layer, sinks, biases everywhere, clamped SwiGLU.
inline void add_gpt_oss_features(ModelConfig& config, const std::string& window) {
  config.attention.window_size = window;
  config.attention.window_attn_skip_freq = "2";
  config.attention.softmax_type = "learnable";
  config.add_bias_linear = true;
  config.moe.moe_router_add_bias = config.moe.moe_expert_add_bias = true;
  config.mlp.activation_func_clamp_value = 2;
  config.mlp.glu_linear_offset = 1;
}

// The variants of modded-nanogpt (Jordan et al., 2024) in a model of four layers: norms without weights, also after the
// embedding and on queries and keys; rotary embedding of half the pairs; value embeddings, one shared by two layers; a
// layer without attention; skips and the embedding in every layer; SiLU; scaled logits.
inline void add_nanogpt_variants(ModelConfig& config) {
  config.num_layers = 4;
  config.untie_embeddings_and_output_weights = true;
  config.init_method = "fan_in";
  config.attention.rotary_half_truncated = config.attention.qk_l2_norm = true;
  config.attention.no_attention_freq = "[0,0,1,0]";
  config.value_embedding_freq = "[1,2,0,1]";
  config.skip_connections = config.embedding_residual = config.embedding_norm = true;
  config.logit_scale = 0.25;
  config.norm.norm_weight = false;
  config.mlp.swiglu = false;
  config.mlp.silu = true;
  config.moe.moe_router_topk = 1;
  config.moe.moe_router_pre_softmax = true;
}

// Qwen3-Next's mixers and norms: attention with a gate in every second layer, Gated DeltaNet in the others, and weights
// of norms that are centred at zero.
inline void add_linear_attention(ModelConfig& config) {
  config.attention.attention_output_gate = config.attention.qk_layernorm = true;
  config.norm.apply_layernorm_1p = true;
  LinearAttentionConfig& linear = config.linear_attention;
  linear.experimental_attention_variant = "gated_delta_net";
  linear.linear_attention_freq = "2";
  linear.linear_num_key_heads = 4;
  linear.linear_num_value_heads = 8;
  linear.linear_key_head_dim = 6;
  linear.linear_value_head_dim = 4;
}

// Kimi Linear's: a decay for each channel of a key, beside latent attention that does not rotate.
inline void add_kimi_linear(ModelConfig& config) {
  add_latent_attention(config, {0, 10, 6, 4, 6});
  config.attention.position_embedding_type = "none";
  LinearAttentionConfig& linear = config.linear_attention;
  linear.experimental_attention_variant = "kimi_delta";
  linear.linear_attention_freq = "2";
  linear.linear_num_key_heads = linear.linear_num_value_heads = 8;
  linear.linear_key_head_dim = linear.linear_value_head_dim = 6;
}

// Nemotron 3's layers of one part each: Mamba-2, experts by DeepSeek-V3's router beside a shared one, attention without
// positions, and a dense MLP, all with squared ReLU.
inline void add_hybrid_layers(ModelConfig& config, const std::string& pattern = "ME*-M") {
  config.num_layers = static_cast<int64_t>(pattern.size());
  config.attention.position_embedding_type = "none";
  config.mlp.swiglu = false;
  config.mlp.squared_relu = true;
  MambaConfig& mamba = config.mamba;
  mamba.hybrid_override_pattern = pattern;
  mamba.mamba_num_heads = 8;
  mamba.mamba_num_groups = 4;
  mamba.mamba_head_dim = 6;
  mamba.mamba_state_dim = 5;
  if (pattern.find('E') == std::string::npos) config.moe.num_experts = 0;
}

// Granite 4's: Mamba-2 in every second layer, attention without positions in the others, and multipliers.
inline void add_granite_layers(ModelConfig& config) {
  config.attention.position_embedding_type = "none";
  config.attention.softmax_scale = 0.3;
  config.embedding_multiplier = 3;
  config.residual_multiplier = 0.4;
  config.logit_scale = 0.25;
  config.linear_attention.experimental_attention_variant = "mamba2";
  config.linear_attention.linear_attention_freq = "2";
  config.mamba.mamba_num_heads = 8;
  config.mamba.mamba_num_groups = 4;
  config.mamba.mamba_head_dim = 6;
  config.mamba.mamba_state_dim = 5;
}

// DeepSeek-V4's parallel residual streams, whose weights depend strongly on the token.
inline void add_residual_streams(ModelConfig& config) {
  config.streams = {.num_residual_streams = 3, .mhc_sinkhorn_iterations = 4, .mhc_init_gating_factor = 1};
}

// DeepSeek Sparse Attention, for models with latent attention: tokens attend to 5 keys, by a choice that two layers
// share, and indexers learn from them.
inline void add_sparse_attention(ModelConfig& config) {
  config.linear_attention.experimental_attention_variant = SparseAttentionConfig::kVariant;
  SparseAttentionConfig& sparse = config.sparse_attention;
  sparse.dsa_indexer_n_heads = 6;
  sparse.dsa_indexer_head_dim = 8;
  sparse.dsa_indexer_topk = 5;
  sparse.dsa_indexer_freq = "[1,0]*" + std::to_string(config.num_layers / 2);
  sparse.dsa_indexer_loss_coeff = 0.3;
  sparse.dsa_indexer_use_sparse_loss = true;
}

// DeepSeek-V4's compressed attention: layers without entries, with chosen ones that overlap, and with all of larger
// ones.
inline void add_compressed_attention(ModelConfig& config) {
  config.linear_attention.experimental_attention_variant = CompressedAttentionConfig::kVariant;
  AttentionConfig& attention = config.attention;
  attention.multi_latent_attention = true;
  attention.num_attention_heads = 4;
  attention.q_lora_rank = 10;
  attention.v_head_dim = 12;
  attention.qk_pos_emb_head_dim = 4;
  config.sparse_attention.dsa_indexer_n_heads = 3;
  config.sparse_attention.dsa_indexer_head_dim = 8;
  config.sparse_attention.dsa_indexer_topk = 2;
  CompressedAttentionConfig& compressed = config.compressed_attention;
  compressed.csa_sparse_ratio = 2;
  compressed.csa_window_size = 3;
  compressed.o_groups = 2;
  compressed.o_lora_rank = 6;
  const char* const ratios[] = {"2", "0", "3"};
  compressed.csa_compress_ratios = "[";
  for (int64_t layer = 0; layer < config.num_layers; ++layer)
    compressed.csa_compress_ratios += (layer > 0 ? "," : "") + std::string(ratios[layer % 3]);
  compressed.csa_compress_ratios += "]";
}

// LFM2's mixers: short convolutions with biases in every second layer, attention with norms of heads in the others.
inline void add_short_convolutions(ModelConfig& config) {
  config.attention.qk_layernorm = true;
  LinearAttentionConfig& linear = config.linear_attention;
  linear.experimental_attention_variant = "short_convolution";
  linear.linear_attention_freq = "2";
  linear.linear_conv_kernel_dim = 3;
  linear.linear_conv_bias = true;
}

// OLMo Hybrid's: Gated DeltaNet with strengths up to 2 after norms of its inputs, and attention whose outputs are
// normalised.
inline void add_hybrid_olmo(ModelConfig& config) {
  add_linear_attention(config);
  config.attention.attention_output_gate = config.norm.apply_layernorm_1p = false;
  config.attention.qk_layernorm_full_width = true;
  config.norm_placement = "post_attention";
  config.linear_attention.linear_allow_neg_eigval = true;
  config.linear_attention.linear_norm_epsilon = 1e-3;
}

// Gemma 4: a window in every second layer, whose heads are of another size and number than those of the others, of
// which values come from the projection of keys and some pairs of channels turn; norms of values and around everything;
// a number for the output of each layer; and an MLP beside experts, whose router has factors of its own. Every head has
// keys of its own in layers with a window.
inline void add_gemma4_features(ModelConfig& config, const std::string& window) {
  AttentionConfig& attention = config.attention;
  attention.window_size = window;
  attention.window_attn_skip_freq = "2";
  attention.kv_channels = 10;
  attention.window_kv_channels = 6;
  attention.window_num_query_groups = attention.num_attention_heads;
  attention.rotary_proportional = true;
  attention.rotary_percent = 0.5;
  attention.window_rotary_percent = 1;
  attention.window_rotary_base = 100;
  attention.qk_layernorm = attention.v_l2_norm = attention.attention_k_eq_v = true;
  attention.softmax_scale = 1;
  config.norm_placement = "both";
  config.layer_scalar = true;
  MoeConfig& moe = config.moe;
  moe.moe_parallel_mlp = moe.moe_router_input_norm = moe.moe_router_expert_scale = moe.moe_router_pre_softmax = true;
  moe.moe_router_norm_topk_prob = "true";
}

// Gemma 4's small models: the last two of four layers borrow keys and values, one in a window and one not, and have
// wide MLPs; each layer has an embedding of its own.
inline void add_small_gemma4_features(ModelConfig& config, const std::string& window) {
  add_gemma4_features(config, window);
  config.num_layers = 4;
  config.num_kv_shared_layers = 2;
  config.use_double_wide_mlp = true;
  config.hidden_size_per_layer_input = 6;
}

// Replaces the attention of these layers by a running mean (support/running_mean.h).
inline void give_running_means(ModelConfig& config, const std::vector<int64_t>& layers, int64_t channels) {
  for (const int64_t layer : layers) config.mixers[layer] = CustomMixer{std::make_shared<RunningMeanKind>(channels)};
}

}  // namespace witan::testing
