#include "witan/train/config/idle_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace witan {
namespace {

using Keys = std::vector<std::string>;

RunConfig with(const Keys& toml) {
  RunConfig config;
  config.model.vocab_size = 300;
  config.parallel.ranks = config.parallel.expert_model_parallel_size = 1;
  config.parallel.device = "cpu";
  std::string text;
  for (const std::string& line : toml) text += line + "\n";
  parse_toml(config.fields(), text, "test");
  return config;
}

// The value that would give the key an effect; empty if it already has one.
std::string needs_of(const std::string& key, const Keys& toml) {
  for (const IdleKey& one : idle_keys(with(toml)))
    if (one.key == key) return one.needs;
  return "";
}

struct Case {
  Keys keys;
  Keys idle, used;  // configurations without and with an effect
  std::string needs;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](Keys keys, Keys idle, Keys used, const char* needs) {
    all.push_back({std::move(keys), std::move(idle), std::move(used), needs});
  };
  add({"mtp_loss_scaling_factor"}, {}, {"mtp_num_layers = 1"}, "mtp_num_layers above 0; here mtp_num_layers = 0");
  add({"lora_alpha", "lora_use_rslora", "lora_use_dora", "lora_dropout", "lora_target_modules"}, {}, {"lora_rank = 4"},
      "lora_rank above 0");
  add({"dpo_beta", "dpo_loss_type", "dpo_reference_free", "rpo_alpha"}, {}, {"objective = 'preference'"},
      "objective = preference; here objective = cross_entropy");
  add({"dpo_label_smoothing"}, {"objective = 'preference'", "dpo_loss_type = 'hinge'"}, {"objective = 'preference'"},
      "dpo_loss_type = sigmoid, sigmoid_norm or robust");
  add({"reference"}, {"objective = 'policy'"}, {"objective = 'policy'", "kl_loss_coef = 0.1"},
      "kl_loss_coef above 0, or objective = preference");
  add({"check_messages", "replay_interval"}, {}, {"ranks = 2"}, "ranks above 1; here ranks = 1");
  const Keys one_micro_batch = {"global_batch_size = 4", "micro_batch_size = 4"};
  for (const auto& [without, needs] : std::vector<std::pair<std::string, const char*>>{
           {"num_experts = 0", "num_experts above 0"},
           {"moe_expert_backend = 'sequential'", "moe_expert_backend = grouped"},
           {"fp8_format = 'e4m3'", "fp8_format = none"},
           {"moe_replicated_experts = 1", "moe_replicated_experts = 0"},
           {"micro_batch_size = 2", "bfloat16 gradients, or one micro-batch per rank"},
           {"ranks = 2", "experts that no other rank holds; here expert_model_parallel_size = 1"}})
    add({"gradient_norm_fusion"}, {"global_batch_size = 4", without}, one_micro_batch, needs);
  add({"gradient_norm_fusion"}, {}, {"dtype = 'bfloat16'", "gradient_dtype = 'bfloat16'"}, "one micro-batch per rank");
  add({"checkpoint_timeout_minutes"}, {"distributed_timeout_minutes = 90"}, {},
      "more than distributed_timeout_minutes; here distributed_timeout_minutes = 90");
  add({"recompute_modules"}, {}, {"recompute_granularity = 'selective'"}, "recompute_granularity = none");
  add({"gelu_tanh"}, {}, {"swiglu = false"}, "; here swiglu = true");
  add({"ffn_hidden_size"}, {"moe_ffn_hidden_size = 64"},
      {"moe_ffn_hidden_size = 64", "moe_layer_freq = '[0,1,1,1]'", "num_layers = 4"}, "dense layers");
  add({"linear_conv_kernel_dim"}, {},
      {"experimental_attention_variant = 'short_convolution'", "linear_attention_freq = '2'"},
      "experimental_attention_variant = gated_delta_net, kimi_delta or short_convolution; here "
      "experimental_attention_variant = "
      "none");
  add({"linear_conv_bias"}, {"experimental_attention_variant = 'gated_delta_net'", "linear_attention_freq = '2'"},
      {"experimental_attention_variant = 'short_convolution'", "linear_attention_freq = '2'"},
      "experimental_attention_variant = short_convolution; here experimental_attention_variant = gated_delta_net");
  add({"linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads",
       "linear_allow_neg_eigval", "linear_norm_epsilon"},
      {}, {"experimental_attention_variant = 'gated_delta_net'", "linear_attention_freq = '2'"},
      "experimental_attention_variant = gated_delta_net or kimi_delta; here experimental_attention_variant = none");
  add({"mamba_num_heads", "mamba_head_dim", "mamba_state_dim", "mamba_num_groups", "mamba_conv_kernel_dim",
       "mamba_conv_bias", "mamba_dt_min"},
      {}, {"hybrid_override_pattern = 'M-'", "num_layers = 2", "num_experts = 0"},
      "a hybrid_override_pattern with layers of Mamba-2 (M), or experimental_attention_variant = mamba2; here "
      "hybrid_override_pattern = none");
  const Keys mamba2 = {"experimental_attention_variant = 'mamba2'", "linear_attention_freq = '2'",
                       "mamba_num_groups = 2"};
  add({"mamba_state_dim", "mamba_dt_min"}, {}, mamba2, "or experimental_attention_variant = mamba2; here ");
  add({"linear_conv_kernel_dim"}, mamba2, {"experimental_attention_variant = 'gated_delta_net'", mamba2[1]},
      "experimental_attention_variant = gated_delta_net, kimi_delta or short_convolution; here "
      "experimental_attention_variant = "
      "mamba2");
  add({"mhc_sinkhorn_iterations", "mhc_epsilon", "mhc_init_gating_factor"}, {}, {"num_residual_streams = 2"},
      "num_residual_streams above 1; here num_residual_streams = 1");
  const Keys sparse = {"experimental_attention_variant = 'dsa'", "multi_latent_attention = true", "q_lora_rank = 8"};
  const Keys compressed = {"experimental_attention_variant = 'dsv4_hybrid'", "multi_latent_attention = true",
                           "q_lora_rank = 8", "v_head_dim = 64"};
  add({"csa_compress_ratios", "csa_sparse_ratio", "csa_window_size", "csa_compress_rotary_base", "o_groups",
       "o_lora_rank"},
      {}, compressed, "experimental_attention_variant = dsv4_hybrid; here experimental_attention_variant = none");
  add({"kv_lora_rank", "qk_head_dim", "softmax_scale", "scale_attn_by_inverse_layer_idx", "rotary_interleaved"},
      compressed, {compressed[1], compressed[2]},
      "experimental_attention_variant other than dsv4_hybrid, whose heads have one key and a scale of their own; here "
      "experimental_attention_variant = dsv4_hybrid");
  add({"mscale", "mscale_all_dim"},
      {compressed[0], compressed[1], compressed[2], compressed[3], "rope_scaling_type = 'yarn'"},
      {compressed[1], compressed[2], "rope_scaling_type = 'yarn'"},
      "experimental_attention_variant other than dsv4_hybrid");
  add({"dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk"}, {}, sparse,
      "experimental_attention_variant = dsa or dsv4_hybrid; here experimental_attention_variant = none");
  add({"dsa_indexer_rope_interleaved", "dsa_indexer_freq", "dsa_indexer_loss_coeff", "dsa_dense_warmup"}, {}, sparse,
      "experimental_attention_variant = dsa; here experimental_attention_variant = none");
  add({"dsa_indexer_use_sparse_loss"}, sparse, {sparse[0], sparse[1], sparse[2], "dsa_indexer_loss_coeff = 0.1"},
      "dsa_indexer_loss_coeff above 0; here dsa_indexer_loss_coeff = 0");
  add({"q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim"}, {}, {"multi_latent_attention = true"},
      "multi_latent_attention = true; here multi_latent_attention = false");
  add({"fp8_recipe", "fp8_keep_weights", "first_last_layers_bf16"}, {}, {"fp8_format = 'e4m3'"},
      "fp8_format = e4m3 or hybrid");
  add({"fp8_margin", "fp8_amax_compute_algo"}, {"fp8_format = 'hybrid'"},
      {"fp8_format = 'hybrid'", "fp8_recipe = 'delayed'"}, "fp8_recipe = delayed; here fp8_recipe = blockwise");
  add({"fp8_amax_history_len"}, {"fp8_format = 'hybrid'", "fp8_recipe = 'delayed'"},
      {"fp8_format = 'hybrid'", "fp8_recipe = 'delayed'", "fp8_amax_compute_algo = 'max'"},
      "fp8_amax_compute_algo = max; here fp8_amax_compute_algo = most_recent");
  add({"num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"}, {"fp8_format = 'hybrid'"},
      {"fp8_format = 'hybrid'", "first_last_layers_bf16 = true"},
      "first_last_layers_bf16 = true; here first_last_layers_bf16 = false");
  add({"use_double_wide_mlp"}, {"num_experts = 0"}, {"num_experts = 0", "num_kv_shared_layers = 1"},
      "num_kv_shared_layers above 0; here num_kv_shared_layers = 0");
  add({"num_query_groups"}, {"multi_latent_attention = true"}, {}, "multi_latent_attention = false");
  add({"rotary_base", "rotary_percent", "rotary_proportional", "rotary_interleaved"},
      {"position_embedding_type = 'none'"}, {}, "position_embedding_type = rope; here position_embedding_type = none");
  add({"original_max_position_embeddings", "rope_low_freq_factor", "rope_high_freq_factor"}, {},
      {"rope_scaling_type = 'llama3'"}, "rope_scaling_type = none");
  const std::string factors = "[1.0,1.5]";
  add({"rope_attention_factor", "rope_long_context"}, {"rope_scaling_type = 'llama3'"},
      {"rope_scaling_type = 'longrope'", "kv_channels = 4", "rope_short_factors = '" + factors + "'",
       "rope_long_factors = '" + factors + "'"},
      "rope_scaling_type = longrope; here rope_scaling_type = llama3");
  add({"beta_fast", "beta_slow", "mscale", "mscale_all_dim"}, {"rope_scaling_type = 'llama3'"},
      {"rope_scaling_type = 'yarn'"}, "rope_scaling_type = llama3");
  add({"window_rotary_base", "window_rope_scaling"}, {"rope_scaling_type = 'yarn'"},
      {"window_size = '3,0'", "rope_scaling_type = 'yarn'"}, "layers with a window; here window_size = none");
  add({"window_kv_channels", "window_num_query_groups", "window_rotary_percent"}, {}, {"window_size = '3,0'"},
      "layers with a window; here window_size = none");
  add({"window_rope_scaling"}, {"window_size = '3,0'"}, {"window_size = '3,0'", "rope_scaling_type = 'yarn'"},
      "rope_scaling_type = none");
  add({"window_rotary_base", "window_rotary_percent"}, {"window_size = '3,0'", "position_embedding_type = 'none'"},
      {"window_size = '3,0'"}, "position_embedding_type = rope; here position_embedding_type = none");
  add({"moe_router_topk", "moe_aux_loss_coeff", "moe_latent_size", "moe_grouped_gemm", "expert_tensor_parallel_size"},
      {"num_experts = 0"}, {"num_experts = 4"}, "num_experts above 0");
  add({"moe_router_pre_softmax"}, {"moe_router_score_function = 'sigmoid'"}, {}, "moe_router_score_function = softmax");
  add({"moe_router_skew"}, {}, {"moe_router_selection = 'skew'"}, "moe_router_selection = topk");
  add({"moe_router_imbalance"}, {}, {"moe_router_selection = 'zipf'", "moe_router_imbalance = 1.5"},
      "moe_router_selection = topk");
  add({"moe_router_sinkhorn_iterations", "moe_router_sinkhorn_tolerance"}, {}, {"moe_router_selection = 'sinkhorn'"},
      "moe_router_selection = sinkhorn; here moe_router_selection = topk");
  add({"moe_router_group_score_topk"}, {}, {"moe_router_num_groups = 2", "moe_router_group_topk = 1"},
      "moe_router_num_groups above 0");
  add({"moe_router_bias_update_rate"}, {},
      {"moe_router_enable_expert_bias = true", "moe_router_score_function = 'sigmoid'"},
      "moe_router_enable_expert_bias = true");
  add({"moe_aux_loss_coeff"}, {"moe_router_load_balancing_type = 'none'"}, {}, "a loss in");
  add({"moe_global_load"}, {}, {"moe_router_load_balancing_type = 'global_aux_loss'", "moe_global_load = 'so_far'"},
      "global_aux_loss in moe_router_load_balancing_type");
  add({"moe_token_drop_policy"}, {}, {"moe_expert_capacity_factor = 1.25"}, "moe_expert_capacity_factor above 0");
  add({"moe_token_dispatcher_type", "moe_pool_factor", "moe_exchange_factor", "moe_replicated_experts"}, {},
      {"ranks = 2", "expert_model_parallel_size = 2"}, "expert_model_parallel_size above 1");
  add({"hierarchical_expert_parallel_size"},
      {"ranks = 2", "expert_model_parallel_size = 2", "hierarchical_expert_parallel_size = 2"},
      {"ranks = 4", "expert_model_parallel_size = 4", "hierarchical_expert_parallel_size = 2"},
      "more expert-parallel ranks than hierarchical_expert_parallel_size; here expert_model_parallel_size = 2");
  add({"keep_best"}, {"save_interval = 0"}, {"save_interval = 5"}, "save_interval above 0; here save_interval = 0");
  add({"split"}, {"split = '80,10,10'"}, {"data_samples = 'megatron'"},
      "data_samples = megatron; the samples of witan are divided by held_out_fraction; here data_samples = witan");
  add({"split"}, {"split = 'x'"}, {"split = '80,10,10'", "held_out_fraction = 0.2"}, "data_samples = megatron");
  add({"data_cache_path"}, {}, {"data_samples = 'megatron'"}, "data_samples = megatron; here data_samples = witan");
  add({"eval_iters"}, {"full_validation = true"}, {}, "full_validation = false; here full_validation = true");
  add({"messages_key", "chat_template", "loss_on", "content_special_tokens", "packing"}, {},
      {"sft = true", "tokenizer = 't.json'"}, "sft = true");
  add({"json_key", "bad_row_share", "replace_invalid_utf8"}, {"data_path = 'p'", "tokenizer = 't.json'"},
      {"data_path = 'p'", "tokenizer = 't.json'", "valid_data = 'a=b.txt'"}, "text to read");
  add({"json_key"}, {"sft = true", "tokenizer = 't.json'"}, {}, "messages_key");
  add({"tokenizer_vocab_size", "tokenizer_pattern", "tokenizer_min_frequency"}, {"tokenizer = 't.json'"}, {},
      "; here tokenizer = t.json");
  add({"sample_prompt", "sample_temperature"}, {"sample_tokens = 0"}, {}, "sample_tokens above 0");
  add({"sample_prompt", "sample_tokens"}, {"tensor_model_parallel_size = 2", "ranks = 2", "sequence_parallel = true"},
      {}, "a rank that holds the whole model");
  add({"sample_prompts"}, {}, {"sample_interval = 5"}, "sample_interval above 0; here sample_interval = 0");
  add({"init_base"}, {}, {"init_from = 'adapters'"}, "init_from = FOLDER");
  add({"upcycle_method", "upcycle_noise"}, {}, {"upcycle = 'dense'"}, "upcycle = RUN");
  add({"upcycle_drop_ratio"}, {"upcycle = 'dense'"}, {"upcycle = 'dense'", "upcycle_method = 'drop'"},
      "upcycle_method = drop; here upcycle_method = copied");
  add({"timing_log_level"}, {}, {"log_format = 'megatron'"}, "log_format = megatron");
  add({"min_lr", "lr_decay_iters"}, {"lr_decay_style = 'constant'"}, {}, "lr_decay_style = constant");
  add({"lr_warmup_init"}, {"lr_warmup_iters = 0"}, {}, "lr_warmup_iters above 0; here lr_warmup_iters = 0");
  add({"lr_warmup_init"}, {"train_samples = 80"}, {"train_samples = 80", "lr_warmup_samples = 8"},
      "lr_warmup_samples above 0; here lr_warmup_samples = 0");
  add({"train_iters", "lr_warmup_iters", "lr_decay_iters", "lr_schedule_counter"}, {"train_samples = 80"}, {},
      "train_samples = 0, since schedules count samples otherwise; here train_samples = 80");
  add({"lr_decay_samples"}, {"lr_decay_style = 'constant'"}, {}, "lr_decay_style = constant");
  add({"decrease_batch_size_if_needed"}, {}, {"rampup_batch_size = '4,4,16'"}, "rampup_batch_size");
  add({"lr_wsd_decay_style", "lr_wsd_decay_samples"}, {},
      {"train_samples = 80", "lr_decay_style = 'WSD'", "lr_wsd_decay_samples = 5"}, "lr_decay_style = WSD");
  add({"lr_wsd_decay_style", "lr_wsd_decay_iters"}, {}, {"lr_decay_style = 'WSD'", "lr_wsd_decay_iters = 5"},
      "lr_decay_style = WSD; here lr_decay_style = cosine");
  add({"adam_beta1", "adam_beta2", "adam_eps", "exp_avg_dtype"}, {"optimizer = 'lion'"}, {}, "; here optimizer = lion");
  add({"adam_beta2", "adam_eps"}, {"optimizer = 'shampoo'", "shampoo_grafting = 'sgd'"}, {"optimizer = 'shampoo'"},
      "shampoo_grafting = adam");
  add({"sgd_momentum"}, {}, {"optimizer = 'sgd'"}, "sgd; here optimizer = adam");
  add({"lion_beta1", "lion_beta2"}, {}, {"optimizer_groups = [{kind = 'norms', optimizer = 'lion'}]"}, "lion");
  add({"ademamix_beta3", "ademamix_alpha", "ademamix_warmup_iters"}, {}, {"optimizer = 'ademamix'"}, "ademamix");
  add({"muon_momentum", "muon_nesterov", "muon_num_ns_steps", "muon_coefficient_type", "muon_scale_mode"}, {},
      {"optimizer = 'normuon'"}, "muon or normuon");
  add({"normuon_beta2"}, {"optimizer = 'muon'"}, {"optimizer = 'normuon'"}, "normuon; here optimizer = muon");
  add({"adam_beta1", "exp_avg_dtype"}, {"optimizer = 'sgd'"}, {"optimizer = 'muon'"}, "optimizer = sgd");
  add({"precondition_frequency", "max_preconditioner_dim", "shampoo_beta"}, {}, {"optimizer = 'soap'"},
      "shampoo or soap");
  add({"start_preconditioning_step", "shampoo_eps", "shampoo_exponent", "shampoo_root", "shampoo_grafting"},
      {"optimizer = 'soap'"}, {"optimizer = 'shampoo'"}, "shampoo; here optimizer = soap");
  add({"qk_clip_threshold", "qk_clip_alpha"}, {}, {"qk_clip = true"}, "qk_clip = true");
  add({"loss_scale", "initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis"}, {},
      {"dtype = 'float16'"}, "dtype = float16; here dtype = float32");
  add({"initial_loss_scale", "hysteresis"}, {"dtype = 'float16'", "loss_scale = 8"}, {"dtype = 'float16'"},
      "loss_scale = 0, a dynamic one; here loss_scale = 8");
  add({"skip_step_window", "on_spike"}, {}, {"skip_step_sigma = 3"}, "skip_step_sigma above 0");
  add({"max_rewinds"}, {}, {"on_nan = 'rewind'"}, "on_nan or on_spike = rewind; here on_nan = skip");
  const Keys rewind = {"on_nan = 'rewind'", "on_spike = 'rewind'", "skip_step_sigma = 3"};
  const Keys unsaved = {rewind[0], rewind[1], rewind[2], "save_interval = 0"};
  add({"on_nan", "on_spike", "max_rewinds"}, unsaved, rewind,
      "save_interval above 0, or a checkpoint saved otherwise, to go back to; here save_interval = 0");
  add({"on_nan", "on_spike"}, unsaved, {"on_nan = 'stop'", "skip_step_sigma = 3", "save_interval = 0"},
      "here save_interval = 0");
  add({"sequence_parallel", "loss_parallel"}, {},
      {"tensor_model_parallel_size = 2", "ranks = 2", "sequence_parallel = true"},
      "tensor_model_parallel_size above 1");
  add({"tp_comm_overlap"}, {},
      {"tensor_model_parallel_size = 2", "ranks = 2", "sequence_parallel = true", "tp_comm_overlap = true"},
      "tensor_model_parallel_size above 1; here tensor_model_parallel_size = 1");
  const Keys sampling = {"rollouts = true", "objective = 'policy'"},
             program = {sampling[0], sampling[1], "reward = 'exact,command'", "reward_command = 'x'"};
  add({"reward", "reward_weights", "max_num_gen_batches", "num_generations"}, {}, sampling, "rollouts = true");
  add({"reward_command", "reward_timeout", "reward_workers", "reward_retries", "reward_memory_limit"}, sampling,
      program, "reward = command");
  add({"max_turns"}, {}, program, "rollouts = true");
  add({"reward_regex"}, sampling, {sampling[0], sampling[1], "reward = 'regex'"}, "reward = regex");
  add({"reward_format"}, sampling, {sampling[0], sampling[1], "reward = 'format'"}, "reward = format");
  add({"cp_comm_type"}, {}, {"context_parallel_size = 2", "ranks = 2"}, "context_parallel_size above 1");
  add({"account_for_loss_in_pipeline_split"}, {}, {"pipeline_model_parallel_size = 2", "ranks = 2"},
      "pipeline_model_parallel_size above 1");
  add({"offload_activations"}, {"recompute_granularity = 'full'"},
      {"recompute_granularity = 'full'", "device = 'cuda'"},
      "device = cuda, since on a CPU there is nothing to move; here device = cpu");
  add({"offload_activations"}, {"device = 'cuda'"}, {"recompute_granularity = 'full'", "device = 'cuda'"},
      "recompute_granularity = full, whose blocks keep their inputs alone; here recompute_granularity = none");
  add({"cuda_graph", "overlap_param_gather", "nvtx_ranges"}, {}, {"device = 'cuda'"},
      "device = cuda; here device = cpu");
  return all;
}

TEST(IdleKeys, AreReportedIfTheirFeatureIsOff) {
  for (const Case& one : cases())
    for (const std::string& key : one.keys) {
      EXPECT_THAT(needs_of(key, one.idle), ::testing::HasSubstr(one.needs)) << key;
      EXPECT_EQ(needs_of(key, one.used), "") << key;
    }
}

TEST(IdleKeys, TensorOverlapNamesWhatItLacks) {
  const Keys overlaps = {"tensor_model_parallel_size = 2", "ranks = 2", "sequence_parallel = true",
                         "tp_comm_overlap = true", "num_layers = 2"};
  EXPECT_EQ(needs_of("tp_comm_overlap", overlaps), "");
  EXPECT_TRUE(with(overlaps).overlaps_tensor_exchanges());
  for (const auto& [change, needs] : std::vector<std::pair<std::string, std::string>>{
           {"sequence_parallel = false", "sequence_parallel = true; here sequence_parallel = false"},
           {"micro_batch_size = 1", "an even micro_batch_size, whose halves take turns; here micro_batch_size = 1"},
           {"hidden_dropout = 0.5", "hidden_dropout = 0; here hidden_dropout = 0.5"},
           {"attention_dropout = 0.5", "attention_dropout = 0; here attention_dropout = 0.5"},
           {"lora_rank = 2\nlora_dropout = 0.5", "lora_dropout = 0; here lora_dropout = 0.5"},
           {"recompute_granularity = 'full'",
            "recompute_granularity = selective or none; here recompute_granularity = full"},
           {"recompute_granularity = 'selective'\nrecompute_modules = 'mlp'",
            "recompute_modules without mlp; here recompute_modules = mlp"},
           {"value_embedding_freq = '[1,0]'", "value_embedding_freq = none; here value_embedding_freq = [1,0]"},
           {"skip_connections = true", "skip_connections = false; here skip_connections = true"},
           {"hidden_size_per_layer_input = 4", "hidden_size_per_layer_input = 0; here hidden_size_per_layer_input = 4"},
           {"num_kv_shared_layers = 1", "num_kv_shared_layers = 0; here num_kv_shared_layers = 1"},
           {"embedding_residual = true", "embedding_residual = false; here embedding_residual = true"},
           {"log_activations = 3", "log_activations = 0; here log_activations = 3"},
           {"multi_latent_attention = true", "multi_latent_attention = false; here multi_latent_attention = true"},
           {"no_attention_freq = '[0,1]'",
            "no_attention_freq = none, attention in every layer; here no_attention_freq = [0,1]"},
           {"hybrid_override_pattern = '*-'\nnum_experts = 0",
            "hybrid_override_pattern = none; here hybrid_override_pattern = *-"},
           {"experimental_attention_variant = 'gated_delta_net'\nlinear_attention_freq = '2'",
            "experimental_attention_variant = none; here experimental_attention_variant = gated_delta_net"}}) {
    Keys changed = overlaps;
    std::erase_if(changed, [&, key = change.substr(0, change.find(' '))](const std::string& line) {
      return line.starts_with(key + " ");
    });
    changed.push_back(change);
    EXPECT_EQ(needs_of("tp_comm_overlap", changed), needs) << change;
    EXPECT_FALSE(with(changed).overlaps_tensor_exchanges()) << change;
  }
}

TEST(IdleKeys, ExcludeKeysThatAlwaysHaveAnEffect) {
  for (const char* key : {"hidden_size", "moe_router_topk", "adam_beta1", "train_iters", "seq_length", "data"})
    EXPECT_EQ(needs_of(key, {}), "") << key;
}

TEST(IdleKeys, AreReportedOncePerReason) {
  RunConfig config = with({"loss_scale = 1024", "hysteresis = 3", "kv_lora_rank = 64"});
  const Fields fields = config.fields();
  std::vector<IdleKey> idle = idle_keys(config);
  const std::set<std::string> asked = {"loss_scale", "hysteresis", "kv_lora_rank"};
  std::erase_if(idle, [&](const IdleKey& one) { return !asked.contains(one.key); });
  EXPECT_THAT(
      describe_idle(idle, fields),
      ::testing::ElementsAre(
          "kv_lora_rank = 64 has no effect: it needs multi_latent_attention = true; here "
          "multi_latent_attention = false",
          "loss_scale = 1024.0 and hysteresis = 3 have no effect: they need dtype = float16; here dtype = float32"));
}

}  // namespace
}  // namespace witan
