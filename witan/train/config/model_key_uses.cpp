// The keys of layers: which of them a model with other settings does not read.
#include <algorithm>

#include "witan/model/frozen.h"
#include "witan/train/config/key_uses.h"

namespace witan {
namespace {

bool has_window(const RunConfig& config) {
  const std::vector<LayerSpec> layers = config.model.layers();
  return std::ranges::any_of(layers, [](const LayerSpec& layer) { return window_of(layer.mixer) > 0; });
}

bool has_dense_mlp(const RunConfig& config) {
  const std::vector<LayerSpec> layers = config.model.layers();
  return std::ranges::any_of(
      layers, [](const LayerSpec& layer) { return (!layer.moe && layer.has_mlp()) || layer.parallel_mlp; });
}

using Config = const RunConfig&;

bool delays_scales(Config c) {
  return c.model.fp8() && c.model.fp8_recipe == "delayed";
}

std::vector<KeyUse> model_uses() {
  return {
      {{"mtp_loss_scaling_factor"},
       "mtp_num_layers above 0",
       "mtp_num_layers",
       [](Config c) { return c.model.mtp_num_layers > 0; }},
      {{"lora_alpha", "lora_use_rslora", "lora_use_dora", "lora_dropout", "lora_target_modules"},
       "lora_rank above 0",
       "lora_rank",
       [](Config c) { return c.model.lora_rank > 0; }},
      {{"frozen_format"}, "lora_rank above 0, or freeze", "lora_rank", [](Config c) { return Freeze(c.model).any(); }},
      {{"frozen_experts_format"},
       "lora_rank above 0 or freeze, and experts",
       "lora_rank",
       [](Config c) { return Freeze(c.model).any() && c.model.moe.num_experts > 0; }},
      {{"frozen_head_format"},
       "lora_rank above 0 or freeze, and untie_embeddings_and_output_weights = true",
       "lora_rank",
       [](Config c) { return Freeze(c.model).any() && c.model.untie_embeddings_and_output_weights; }},
      {{"recompute_modules"},
       "recompute_granularity = selective",
       "recompute_granularity",
       [](Config c) { return c.model.recompute() == Recompute::selective; }},
      {{"fp8_recipe", "fp8_keep_weights", "first_last_layers_bf16"},
       "fp8_format = e4m3 or hybrid",
       "fp8_format",
       [](Config c) { return c.model.fp8(); }},
      {{"fp8_margin", "fp8_amax_compute_algo"},
       "fp8_format = e4m3 or hybrid, and fp8_recipe = delayed",
       "fp8_recipe",
       [](Config c) { return delays_scales(c); }},
      {{"fp8_amax_history_len"},
       "fp8_recipe = delayed with fp8_amax_compute_algo = max",
       "fp8_amax_compute_algo",
       [](Config c) { return delays_scales(c) && c.model.fp8_amax_compute_algo == "max"; }},
      {{"num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"},
       "fp8_format = e4m3 or hybrid, and first_last_layers_bf16 = true",
       "first_last_layers_bf16",
       [](Config c) { return c.model.fp8() && c.model.first_last_layers_bf16; }},
      {{"use_double_wide_mlp"},
       "num_kv_shared_layers above 0",
       "num_kv_shared_layers",
       [](Config c) { return c.model.num_kv_shared_layers > 0; }},
      {{"use_double_wide_mlp"}, "dense MLPs", "", has_dense_mlp},
      {{"gelu_tanh"}, "swiglu = false: GELU or GEGLU", "swiglu", [](Config c) { return !c.model.mlp.swiglu; }},
      {{"ffn_hidden_size"},
       "dense layers, or moe_ffn_hidden_size = 0, where it is the experts' size too",
       "moe_ffn_hidden_size",
       [](Config c) { return c.model.moe.moe_ffn_hidden_size == 0 || has_dense_mlp(c); }},
  };
}

std::vector<KeyUse> attention_uses() {
  return {
      {{"num_query_groups"},
       "multi_latent_attention = false",
       "multi_latent_attention",
       [](Config c) { return !c.model.attention.multi_latent_attention; }},
      {{"q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim"},
       "multi_latent_attention = true",
       "multi_latent_attention",
       [](Config c) { return c.model.attention.multi_latent_attention; }},
      {{"linear_conv_kernel_dim"},
       "experimental_attention_variant = gated_delta_net, kimi_delta or short_convolution",
       "experimental_attention_variant",
       [](Config c) { return c.model.linear_attention.delta() || c.model.linear_attention.short_convolution(); }},
      {{"linear_conv_bias"},
       "experimental_attention_variant = short_convolution",
       "experimental_attention_variant",
       [](Config c) { return c.model.linear_attention.short_convolution(); }},
      {{"linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads",
        "linear_allow_neg_eigval", "linear_norm_epsilon"},
       "experimental_attention_variant = gated_delta_net or kimi_delta",
       "experimental_attention_variant",
       [](Config c) { return c.model.linear_attention.delta(); }},
      {{"csa_compress_ratios", "csa_sparse_ratio", "csa_window_size", "csa_compress_rotary_base", "o_groups",
        "o_lora_rank"},
       "experimental_attention_variant = dsv4_hybrid",
       "experimental_attention_variant",
       [](Config c) { return c.model.has_compressed_attention(); }},
      {{"kv_lora_rank", "qk_head_dim", "softmax_scale", "scale_attn_by_inverse_layer_idx", "rotary_interleaved",
        "mscale", "mscale_all_dim"},
       "experimental_attention_variant other than dsv4_hybrid, whose heads have one key and a scale of their own",
       "experimental_attention_variant",
       [](Config c) { return !c.model.has_compressed_attention(); }},
      {{"dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk"},
       "experimental_attention_variant = dsa or dsv4_hybrid",
       "experimental_attention_variant",
       [](Config c) { return c.model.has_sparse_attention() || c.model.has_compressed_attention(); }},
      {{"dsa_indexer_rope_interleaved", "dsa_indexer_freq", "dsa_indexer_loss_coeff", "dsa_dense_warmup"},
       "experimental_attention_variant = dsa",
       "experimental_attention_variant",
       [](Config c) { return c.model.has_sparse_attention(); }},
      {{"dsa_indexer_use_sparse_loss"},
       "experimental_attention_variant = dsa with dsa_indexer_loss_coeff above 0",
       "dsa_indexer_loss_coeff",
       [](Config c) { return c.model.has_sparse_attention() && c.model.sparse_attention.dsa_indexer_loss_coeff > 0; }},
      {{"mamba_num_heads", "mamba_head_dim", "mamba_state_dim", "mamba_num_groups", "mamba_conv_kernel_dim",
        "mamba_conv_bias", "mamba_dt_min"},
       "a hybrid_override_pattern with layers of Mamba-2 (M), or experimental_attention_variant = mamba2",
       "hybrid_override_pattern",
       [](Config c) { return c.model.has_mamba(); }},
      {{"mhc_sinkhorn_iterations", "mhc_epsilon", "mhc_init_gating_factor"},
       "num_residual_streams above 1",
       "num_residual_streams",
       [](Config c) { return c.model.streams.any(); }},
      {{"rotary_base", "rotary_percent", "rotary_proportional", "rotary_interleaved"},
       "position_embedding_type = rope",
       "position_embedding_type",
       [](Config c) { return c.model.attention.rotates(); }},
      {{"original_max_position_embeddings"},
       "rope_scaling_type = llama3, yarn, yarn_unrounded, longrope or dynamic",
       "rope_scaling_type",
       [](Config c) {
         const std::string& type = c.model.attention.rope_scaling_type;
         return type != "none" && type != "linear";
       }},
      {{"rope_short_factors", "rope_long_factors", "rope_attention_factor", "rope_long_context"},
       "rope_scaling_type = longrope",
       "rope_scaling_type",
       [](Config c) { return c.model.attention.rope_scaling_type == "longrope"; }},
      {{"beta_fast", "beta_slow", "mscale", "mscale_all_dim"},
       "rope_scaling_type = yarn or yarn_unrounded",
       "rope_scaling_type",
       [](Config c) { return c.model.attention.rope_scaling_type.starts_with("yarn"); }},
      {{"rope_low_freq_factor", "rope_high_freq_factor"},
       "rope_scaling_type = llama3",
       "rope_scaling_type",
       [](Config c) { return c.model.attention.rope_scaling_type == "llama3"; }},
      {{"window_kv_channels", "window_num_query_groups", "window_rotary_percent", "window_rotary_base",
        "window_rope_scaling"},
       "layers with a window",
       "window_size",
       has_window},
      {{"window_rotary_percent", "window_rotary_base"},
       "position_embedding_type = rope",
       "position_embedding_type",
       [](Config c) { return c.model.attention.rotates(); }},
      {{"window_rope_scaling"},
       "rope_scaling_type other than none",
       "rope_scaling_type",
       [](Config c) { return c.model.attention.rope_scaling_type != "none"; }},
  };
}

}  // namespace

std::vector<KeyUse> model_key_uses() {
  std::vector<KeyUse> all = model_uses();
  std::ranges::move(attention_uses(), std::back_inserter(all));
  return all;
}

std::vector<KeyUse> expert_key_uses() {
  return {
      {{"moe_router_pre_softmax"},
       "moe_router_score_function = softmax",
       "moe_router_score_function",
       [](Config c) { return c.model.moe.moe_router_score_function == "softmax"; }},
      {{"moe_router_skew"},
       "moe_router_selection = skew",
       "moe_router_selection",
       [](Config c) { return c.model.moe.moe_router_selection == "skew"; }},
      {{"moe_router_imbalance"},
       "moe_router_selection = zipf",
       "moe_router_selection",
       [](Config c) { return c.model.moe.moe_router_selection == "zipf"; }},
      {{"moe_router_sinkhorn_iterations", "moe_router_sinkhorn_tolerance"},
       "moe_router_selection = sinkhorn",
       "moe_router_selection",
       [](Config c) { return c.model.moe.moe_router_selection == "sinkhorn"; }},
      {{"moe_router_group_score_topk"},
       "moe_router_num_groups above 0",
       "moe_router_num_groups",
       [](Config c) { return c.model.moe.moe_router_num_groups > 0; }},
      {{"moe_router_bias_update_rate"},
       "moe_router_enable_expert_bias = true",
       "moe_router_enable_expert_bias",
       [](Config c) { return c.model.moe.moe_router_enable_expert_bias; }},
      {{"moe_aux_loss_coeff"},
       "a loss in moe_router_load_balancing_type",
       "moe_router_load_balancing_type",
       [](Config c) { return !c.model.moe.balance_losses().empty(); }},
      {{"moe_global_load"},
       "global_aux_loss in moe_router_load_balancing_type",
       "moe_router_load_balancing_type",
       [](Config c) {
         return c.model.moe.moe_router_load_balancing_type.find("global_aux_loss") != std::string::npos;
       }},
      {{"moe_token_drop_policy"},
       "moe_expert_capacity_factor above 0",
       "moe_expert_capacity_factor",
       [](Config c) { return c.model.moe.moe_expert_capacity_factor > 0; }},
      {{"moe_token_dispatcher_type", "moe_pool_factor", "moe_exchange_factor", "moe_replicated_experts"},
       "expert_model_parallel_size above 1",
       "expert_model_parallel_size",
       [](Config c) { return c.parallel.expert_model_parallel_size > 1; }},
  };
}

}  // namespace witan
