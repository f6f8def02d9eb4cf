#include "witan/train/config/idle_keys.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>
#include <utility>

#include "witan/base/error.h"
#include "witan/data/megatron/blend.h"
#include "witan/optim/param_groups.h"

namespace witan {
namespace {

// The condition under which keys have an effect. Keys without a KeyUse always have one; with several, all must apply.
struct KeyUse {
  std::vector<std::string_view> keys;
  std::string_view needs;  // in a message: "it needs NEEDS; here BY = its value"
  std::string_view by;     // the key that decides; empty: the message ends with NEEDS
  std::function<bool(const RunConfig&)> applies;
};

// Whether [optimizer] or a parameter group uses one of these optimizers.
template <class... Names>
bool optimizes(const RunConfig& config, Names... names) {
  const ParamGroups groups(config.optimizer);
  return std::ranges::any_of(groups.all(),
                             [&](const ParamGroup& group) { return ((group.settings.optimizer == names) || ...); });
}

bool shampoo_grafts_adam(const RunConfig& config) {
  const ParamGroups groups(config.optimizer);
  return std::ranges::any_of(groups.all(), [](const ParamGroup& group) {
    return group.settings.optimizer == "shampoo" && group.settings.shampoo_grafting == "adam";
  });
}

bool has_window(const RunConfig& config) {
  const std::vector<LayerSpec> layers = config.model.layers();
  return std::ranges::any_of(layers, [](const LayerSpec& layer) { return window_of(layer.mixer) > 0; });
}

bool has_dense_mlp(const RunConfig& config) {
  const std::vector<LayerSpec> layers = config.model.layers();
  return std::ranges::any_of(
      layers, [](const LayerSpec& layer) { return (!layer.moe && layer.has_mlp()) || layer.parallel_mlp; });
}

// Whether held_out_fraction agrees with `split`, since Megatron-LM's --split sets both.
bool is_held_out_by_split(const DataConfig& data) try {
  const megatron::Shares shares = megatron::parse_split(data.split);
  const double held_out = 1 - (shares[0] ? shares[0]->end : 0);
  return std::abs(held_out - data.held_out_fraction) < 1e-9;
} catch (const ConfigError&) {  // an invalid split matters only with Megatron-Core's samples
  return false;
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
      {{"lora_alpha", "lora_dropout", "lora_target_modules"},
       "lora_rank above 0",
       "lora_rank",
       [](Config c) { return c.model.lora_rank > 0; }},
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
       "experimental_attention_variant = gated_delta_net or short_convolution",
       "experimental_attention_variant",
       [](Config c) { return c.model.linear_attention.any(); }},
      {{"linear_conv_bias"},
       "experimental_attention_variant = short_convolution",
       "experimental_attention_variant",
       [](Config c) { return c.model.linear_attention.any() && !c.model.linear_attention.delta(); }},
      {{"linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads",
        "linear_allow_neg_eigval", "linear_norm_epsilon"},
       "experimental_attention_variant = gated_delta_net",
       "experimental_attention_variant",
       [](Config c) { return c.model.linear_attention.delta(); }},
      {{"csa_compress_ratios", "csa_sparse_ratio", "csa_window_size", "csa_compress_rotary_base", "o_groups",
        "o_lora_rank"},
       "experimental_attention_variant = dsv4_hybrid",
       "experimental_attention_variant",
       [](Config c) { return c.model.has_compressed_attention(); }},
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
       "a hybrid_override_pattern with layers of Mamba-2 (M)",
       "hybrid_override_pattern",
       [](Config c) {
         return c.model.mamba.any() && c.model.mamba.hybrid_override_pattern.find('M') != std::string::npos;
       }},
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

// Keys of a model with experts. For a dense model idle_keys() gives one reason for all of them.
std::vector<KeyUse> expert_uses() {
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

std::vector<KeyUse> data_uses() {
  return {
      {{"split"},
       "data_samples = megatron; the samples of witan are divided by held_out_fraction",
       "data_samples",
       [](Config c) { return c.data.megatron_samples() || is_held_out_by_split(c.data); }},
      {{"data_cache_path"},
       "data_samples = megatron",
       "data_samples",
       [](Config c) { return c.data.megatron_samples(); }},
      {{"messages_key", "chat_template", "loss_on", "content_special_tokens", "packing"},
       "sft = true",
       "sft",
       [](Config c) { return c.data.sft; }},
      {{"bad_row_share", "replace_invalid_utf8"},
       "text to read, in data or valid_data: tokens are read as they are",
       "data_path",
       [](Config c) { return c.data.data_path.empty() || !c.data.valid_data.empty(); }},
      {{"json_key"},
       "text to read, in data or valid_data: tokens are read as they are",
       "data_path",
       [](Config c) { return c.data.data_path.empty() || !c.data.valid_data.empty(); }},
      {{"json_key"},
       "sft = false: the key of conversations is messages_key",
       "sft",
       [](Config c) { return !c.data.sft; }},
      {{"tokenizer_vocab_size", "tokenizer_pattern", "tokenizer_min_frequency"},
       "a tokenizer that is trained for the run",
       "tokenizer",
       [](Config c) { return c.data.tokenizer.empty(); }},
  };
}

std::vector<KeyUse> run_uses() {
  return {
      {{"check_messages", "replay_interval"}, "ranks above 1", "ranks", [](Config c) { return c.parallel.ranks > 1; }},
      {{"decrease_batch_size_if_needed"},
       "rampup_batch_size",
       "",
       [](Config c) { return !c.train.rampup_batch_size.empty(); }},
      {{"eval_iters"},
       "full_validation = false",
       "full_validation",
       // eval_iters also limits the evaluation of Megatron's test split.
       [](Config c) { return !c.train.full_validation || c.data.megatron_samples(); }},
      {{"sample_prompt", "sample_temperature"},
       "sample_tokens above 0",
       "sample_tokens",
       [](Config c) { return c.train.sample_tokens > 0; }},
      {{"sample_prompts"},
       "sample_interval above 0",
       "sample_interval",
       [](Config c) { return c.train.sample_interval > 0; }},
      {{"sample_prompt", "sample_temperature", "sample_tokens"},
       "a rank that holds the whole model, which tensor, context and pipeline parallelism divide",
       "",
       [](Config c) { return c.parallel.model_ranks() == 1; }},
      {{"upcycle_method", "upcycle_noise", "upcycle_drop_ratio"},
       "a dense model to start from, upcycle = RUN",
       "",
       [](Config c) { return !c.train.upcycle.empty(); }},
      {{"upcycle_drop_ratio"},
       "upcycle_method = drop",
       "upcycle_method",
       [](Config c) { return c.train.upcycle_method == "drop"; }},
      {{"timing_log_level"}, "log_format = megatron", "log_format", [](Config c) { return c.log.megatron(); }},
  };
}

std::vector<KeyUse> objective_uses() {
  return {
      {{"clip_ratio_low", "clip_ratio_high", "importance_sampling_level", "importance_sampling_cap", "loss_agg_mode",
        "loss_scale_factor", "kl_loss_coef"},
       "objective = policy",
       "objective",
       [](Config c) { return c.objective.objective == "policy"; }},
      {{"dpo_beta", "dpo_loss_type", "dpo_label_smoothing", "dpo_reference_free", "rpo_alpha"},
       "objective = preference",
       "objective",
       [](Config c) { return c.objective.is_preference(); }},
      {{"dpo_label_smoothing"},
       "dpo_loss_type = sigmoid, sigmoid_norm or robust",
       "dpo_loss_type",
       [](Config c) { return c.objective.dpo_loss_type != "hinge" && c.objective.dpo_loss_type != "ipo"; }},
      {{"reference"},
       "kl_loss_coef above 0, or objective = preference with dpo_reference_free = false",
       "kl_loss_coef",
       [](Config c) { return c.reference() != ReferenceKind::none; }},
      {{"num_generations",  "max_completion_length", "steps_per_generation",    "rollout_batch_size",
        "stop_strings",     "router_replay",         "max_num_gen_batches",     "reward",
        "reward_weights",   "reward_regex",          "reward_format",           "reward_command",
        "reward_timeout",   "reward_workers",        "reward_retries",          "reward_memory_limit",
        "scale_rewards",    "overlong_buffer_len",   "overlong_penalty_factor", "kv_cache_dtype",
        "cache_mla_latents"},
       "rollouts = true",
       "rollouts",
       [](Config c) { return c.rollout.rollouts; }},
      {{"reward_timeout", "reward_workers", "reward_retries", "reward_memory_limit"},
       "reward = command",
       "reward",
       [](Config c) { return c.rollout.rewards_by(WeightedReward::Kind::command); }},
      {{"reward_command"},
       "reward = command",
       "reward",
       [](Config c) { return c.rollout.rewards_by(WeightedReward::Kind::command); }},
      {{"reward_regex"},
       "reward = regex",
       "reward",
       [](Config c) { return c.rollout.rewards_by(WeightedReward::Kind::regex); }},
      {{"reward_format"},
       "reward = format",
       "reward",
       [](Config c) { return c.rollout.rewards_by(WeightedReward::Kind::format); }},
      {{"overlong_penalty_factor"},
       "overlong_buffer_len above 0",
       "overlong_buffer_len",
       [](Config c) { return c.rollout.overlong_buffer_len > 0; }},
      {{"loss_scale_factor"},
       "loss_agg_mode = seq_mean_token_sum_norm",
       "loss_agg_mode",
       [](Config c) { return c.objective.loss_agg_mode == "seq_mean_token_sum_norm"; }},
  };
}

std::vector<KeyUse> optimizer_uses() {
  constexpr std::string_view kCheckpoints = "save_interval above 0, or a checkpoint saved otherwise, to go back to";
  const auto saves = [](Config c) { return c.train.save_interval > 0; };
  return {
      {{"min_lr", "lr_decay_iters"},
       "an lr_decay_style that decays",
       "lr_decay_style",
       [](Config c) { return c.optimizer.lr_decay_style != "constant"; }},
      {{"lr_warmup_init"},
       "lr_warmup_iters above 0",
       "lr_warmup_iters",
       [](Config c) { return c.train.train_samples > 0 || c.optimizer.lr_warmup_iters > 0; }},
      {{"lr_warmup_init"},
       "lr_warmup_samples above 0",
       "lr_warmup_samples",
       [](Config c) { return c.train.train_samples == 0 || c.optimizer.lr_warmup_samples > 0; }},
      {{"lr_warmup_iters", "lr_decay_iters", "lr_wsd_decay_iters", "lr_schedule_counter", "train_iters"},
       "train_samples = 0, since schedules count samples otherwise",
       "train_samples",
       [](Config c) { return c.train.train_samples == 0; }},
      {{"lr_decay_samples"},
       "an lr_decay_style that decays",
       "lr_decay_style",
       [](Config c) { return c.optimizer.lr_decay_style != "constant"; }},
      {{"lr_wsd_decay_samples"},
       "lr_decay_style = WSD",
       "lr_decay_style",
       [](Config c) { return c.optimizer.lr_decay_style == "WSD"; }},
      {{"lr_wsd_decay_style", "lr_wsd_decay_iters"},
       "lr_decay_style = WSD",
       "lr_decay_style",
       [](Config c) { return c.optimizer.lr_decay_style == "WSD"; }},
      {{"start_weight_decay"},
       "weight_decay_incr_style = linear or cosine",
       "weight_decay_incr_style",
       [](Config c) { return c.optimizer.weight_decay_incr_style != "constant"; }},
      {{"adam_beta1"},
       "optimizer = adam, ademamix, shampoo or soap",
       "optimizer",
       [](Config c) { return optimizes(c, "adam", "ademamix", "shampoo", "soap"); }},
      {{"adam_beta2", "adam_eps"},
       "optimizer = adam, ademamix, soap, or shampoo with shampoo_grafting = adam",
       "optimizer",
       [](Config c) { return optimizes(c, "adam", "ademamix", "soap") || shampoo_grafts_adam(c); }},
      {{"exp_avg_dtype", "exp_avg_sq_dtype"},
       "optimizer = adam",
       "optimizer",
       [](Config c) { return optimizes(c, "adam"); }},
      {{"sgd_momentum"}, "optimizer = sgd", "optimizer", [](Config c) { return optimizes(c, "sgd"); }},
      {{"lion_beta1", "lion_beta2"}, "optimizer = lion", "optimizer", [](Config c) { return optimizes(c, "lion"); }},
      {{"ademamix_beta3", "ademamix_alpha", "ademamix_warmup_iters"},
       "optimizer = ademamix",
       "optimizer",
       [](Config c) { return optimizes(c, "ademamix"); }},
      {{"muon_momentum", "muon_nesterov", "muon_num_ns_steps", "muon_coefficient_type", "muon_scale_mode",
        "muon_extra_scale_factor"},
       "optimizer = muon or normuon",
       "optimizer",
       [](Config c) { return optimizes(c, "muon", "normuon"); }},
      {{"normuon_beta2"}, "optimizer = normuon", "optimizer", [](Config c) { return optimizes(c, "normuon"); }},
      {{"precondition_frequency", "max_preconditioner_dim", "shampoo_beta"},
       "optimizer = shampoo or soap",
       "optimizer",
       [](Config c) { return optimizes(c, "shampoo", "soap"); }},
      {{"start_preconditioning_step", "shampoo_eps", "shampoo_exponent", "shampoo_root", "shampoo_grafting"},
       "optimizer = shampoo",
       "optimizer",
       [](Config c) { return optimizes(c, "shampoo"); }},
      {{"qk_clip_threshold", "qk_clip_alpha"},
       "qk_clip = true",
       "qk_clip",
       [](Config c) { return c.optimizer.qk_clip; }},
      {{"loss_scale", "initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis"},
       "dtype = float16",
       "dtype",
       [](Config c) { return c.model.compute_dtype() == DType::f16; }},
      {{"initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis"},
       "loss_scale = 0, a dynamic one",
       "loss_scale",
       [](Config c) { return c.optimizer.loss_scale == 0; }},
      {{"skip_step_window", "on_spike"},
       "skip_step_sigma above 0",
       "skip_step_sigma",
       [](Config c) { return c.optimizer.skip_step_sigma > 0; }},
      {{"keep_best"}, "save_interval above 0", "save_interval", saves},
      {{"max_rewinds"}, "on_nan or on_spike = rewind", "on_nan", [](Config c) { return c.train.rewinds(); }},
      {{"on_nan"}, kCheckpoints, "save_interval", [=](Config c) { return c.train.on_nan != "rewind" || saves(c); }},
      {{"on_spike"}, kCheckpoints, "save_interval", [=](Config c) { return c.train.on_spike != "rewind" || saves(c); }},
      {{"max_rewinds"}, kCheckpoints, "save_interval", saves},
  };
}

// The requirements of GradientBuckets on gradients that keep sums of blocks, and of Experts on the products that fill
// them.
std::vector<KeyUse> norm_fusion_uses() {
  return {
      {{"gradient_norm_fusion"},
       "num_experts above 0",
       "num_experts",
       [](Config c) { return c.model.moe.num_experts > 0; }},
      {{"gradient_norm_fusion"},
       "moe_expert_backend = grouped",
       "moe_expert_backend",
       [](Config c) { return c.model.moe.moe_expert_backend == "grouped"; }},
      {{"gradient_norm_fusion"}, "fp8_format = none", "fp8_format", [](Config c) { return !c.model.fp8(); }},
      {{"gradient_norm_fusion"},
       "moe_replicated_experts = 0",
       "moe_replicated_experts",
       [](Config c) { return c.model.moe.moe_replicated_experts == 0; }},
      {{"gradient_norm_fusion"},
       "bfloat16 gradients, or one micro-batch per rank",
       "gradient_dtype",
       [](Config c) {
         return c.gradient_dtype() == DType::bf16 || c.micro_batches() <= std::max<int64_t>(1, c.parallel.data_ranks());
       }},
      {{"gradient_norm_fusion"},
       "experts that no other rank holds",
       "expert_model_parallel_size",
       [](Config c) {
         const ParallelConfig& p = c.parallel;
         const auto world = static_cast<int>(p.ranks);
         const int64_t experts = c.model.moe.num_experts;
         return p.pipeline_model_parallel_size * p.expert_ranks(world, experts) * p.expert_tensor_ranks(experts) >=
                world;
       }},
  };
}

std::vector<KeyUse> parallel_uses() {
  return {
      {{"hierarchical_expert_parallel_size"},
       "more expert-parallel ranks than hierarchical_expert_parallel_size",
       "expert_model_parallel_size",
       [](Config c) {
         return c.parallel.hierarchical_expert_ranks(static_cast<int>(c.parallel.ranks), c.model.moe.num_experts) > 0;
       }},
      {{"expert_tensor_parallel_size"},
       "num_experts above 0",
       "num_experts",
       [](Config c) { return c.model.moe.num_experts > 0; }},
      {{"sequence_parallel", "loss_parallel"},
       "tensor_model_parallel_size above 1",
       "tensor_model_parallel_size",
       [](Config c) { return c.parallel.tensor_model_parallel_size > 1; }},
      {{"cp_comm_type"},
       "context_parallel_size above 1",
       "context_parallel_size",
       [](Config c) { return c.parallel.context_parallel_size > 1; }},
      {{"account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"},
       "pipeline_model_parallel_size above 1",
       "pipeline_model_parallel_size",
       [](Config c) { return c.parallel.pipeline_model_parallel_size > 1; }},
      {{"checkpoint_timeout_minutes"},
       "more than distributed_timeout_minutes",
       "distributed_timeout_minutes",
       [](Config c) { return c.parallel.checkpoint_timeout_minutes > c.parallel.distributed_timeout_minutes; }},
      {{"cuda_graph", "overlap_param_gather", "nvtx_ranges"},
       "device = cuda",
       "device",
       [](Config c) { return c.parallel.on_gpu(); }},
  };
}

// One for each key that can prevent layers from running in lanes, so that the message names the one that does.
std::vector<KeyUse> tensor_overlap_uses() {
  const std::pair<std::string_view, std::string_view> needs[] = {
      {"tensor_model_parallel_size", "tensor_model_parallel_size above 1"},
      {"sequence_parallel", "sequence_parallel = true"},
      {"micro_batch_size", "an even micro_batch_size, whose halves take turns"},
      {"hidden_dropout", "hidden_dropout = 0"},
      {"attention_dropout", "attention_dropout = 0"},
      {"lora_dropout", "lora_dropout = 0"},
      {"recompute_granularity", "recompute_granularity = selective or none"},
      {"recompute_modules", "recompute_modules without mlp"},
      {"value_embedding_freq", "value_embedding_freq = none"},
      {"skip_connections", "skip_connections = false"},
      {"embedding_residual", "embedding_residual = false"},
      {"log_activations", "log_activations = 0"},
      {"multi_latent_attention", "multi_latent_attention = false"},
      {"no_attention_freq", "no_attention_freq = none, attention in every layer"},
      {"hybrid_override_pattern", "hybrid_override_pattern = none"},
      {"experimental_attention_variant", "experimental_attention_variant = none"}};
  std::vector<KeyUse> uses;
  for (const auto& [key, need] : needs)
    uses.push_back(
        {{"tp_comm_overlap"}, need, key, [by = key](Config c) { return c.key_against_tensor_overlap() != by; }});
  return uses;
}

std::vector<KeyUse> all_uses(const RunConfig& config) {
  std::vector<KeyUse> all;
  const auto add = [&](std::vector<KeyUse> uses) { std::ranges::move(uses, std::back_inserter(all)); };
  add(model_uses());
  add(attention_uses());
  if (config.model.moe.num_experts > 0) add(expert_uses());
  add(data_uses());
  add(run_uses());
  add(objective_uses());
  add(optimizer_uses());
  add(parallel_uses());
  add(norm_fusion_uses());
  add(tensor_overlap_uses());
  return all;
}

// A key and its value as in a TOML file, without quotes.
std::string assignment(const Fields& fields, std::string_view key) {
  std::string text = std::ranges::find(fields, key, &Field::name)->text();
  if (text == "\"\"") return cat(key, " is empty");
  std::erase(text, '"');
  return cat(key, " = ", text);
}

}  // namespace

std::vector<IdleKey> idle_keys(const RunConfig& config) {
  RunConfig copy = config;  // fields() is not const
  const Fields fields = copy.fields();
  const std::vector<KeyUse> uses = all_uses(config);
  std::vector<const KeyUse*> missing;
  for (const KeyUse& use : uses)
    if (!use.applies(config)) missing.push_back(&use);
  std::vector<IdleKey> idle;
  for (const Field& field : fields) {
    if (field.section == "moe" && field.name != "num_experts" && config.model.moe.num_experts == 0) {
      idle.push_back({field.name, "num_experts above 0; the model is dense"});
      continue;
    }
    const auto found = std::ranges::find_if(
        missing, [&](const KeyUse* use) { return std::ranges::find(use->keys, field.name) != use->keys.end(); });
    if (found == missing.end()) continue;
    const KeyUse& use = **found;
    idle.push_back(
        {field.name, use.by.empty() ? std::string(use.needs) : cat(use.needs, "; here ", assignment(fields, use.by))});
  }
  return idle;
}

bool norm_fusion_applies(const RunConfig& config) {
  return std::ranges::all_of(norm_fusion_uses(), [&](const KeyUse& use) { return use.applies(config); });
}

std::vector<std::string> describe_idle(const std::vector<IdleKey>& idle, const Fields& fields) {
  std::vector<std::pair<std::string, std::vector<std::string>>> by_reason;
  for (const IdleKey& one : idle) {
    auto known = std::ranges::find(by_reason, one.needs, &decltype(by_reason)::value_type::first);
    if (known == by_reason.end()) known = by_reason.insert(by_reason.end(), {one.needs, {}});
    known->second.push_back(assignment(fields, one.key));
  }
  std::vector<std::string> sentences;
  for (const auto& [needs, keys] : by_reason) {
    std::string list;
    for (size_t i = 0; i < keys.size(); ++i) list += cat(i == 0 ? "" : i + 1 == keys.size() ? " and " : ", ", keys[i]);
    sentences.push_back(
        cat(list, keys.size() == 1 ? " has no effect: it needs " : " have no effect: they need ", needs));
  }
  return sentences;
}

}  // namespace witan
