// The keys of training: which of them a run with other settings does not read.
#include <algorithm>
#include <cmath>
#include <utility>

#include "witan/base/error.h"
#include "witan/data/megatron/blend.h"
#include "witan/optim/param_groups.h"
#include "witan/train/config/key_uses.h"

namespace witan {
namespace {

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

// Whether held_out_fraction agrees with `split`, since Megatron-LM's --split sets both.
bool is_held_out_by_split(const DataConfig& data) try {
  const megatron::Shares shares = megatron::parse_split(data.split);
  const double held_out = 1 - (shares[0] ? shares[0]->end : 0);
  return std::abs(held_out - data.held_out_fraction) < 1e-9;
} catch (const ConfigError&) {  // an invalid split matters only with Megatron-Core's samples
  return false;
}

using Config = const RunConfig&;

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
      {{"init_base"},
       "adapters to start from, init_from = FOLDER",
       "",
       [](Config c) { return !c.train.init_from.empty(); }},
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
        "loss_scale_factor", "kl_loss_coef", "rollout_temperature"},
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
      {{"num_generations",
        "max_completion_length",
        "steps_per_generation",
        "rollout_batch_size",
        "stop_strings",
        "router_replay",
        "max_num_gen_batches",
        "reward",
        "reward_weights",
        "reward_regex",
        "reward_format",
        "reward_command",
        "reward_timeout",
        "reward_workers",
        "reward_retries",
        "reward_memory_limit",
        "scale_rewards",
        "overlong_buffer_len",
        "overlong_penalty_factor",
        "kv_cache_dtype",
        "cache_mla_latents",
        "mask_truncated_completions",
        "rollout_eval_prompts",
        "keep_rollouts"},
       "rollouts = true",
       "rollouts",
       [](Config c) { return c.rollout.rollouts; }},
      {{"rollout_eval_temperature"},
       "rollouts = true and rollout_eval_prompts above 0",
       "rollout_eval_prompts",
       [](Config c) { return c.rollout.rollouts && c.rollout.rollout_eval_prompts > 0; }},
      {{"max_turns"}, "rollouts = true", "rollouts", [](Config c) { return c.rollout.rollouts; }},
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
      {{"offload_activations"},
       "device = cuda, since on a CPU there is nothing to move",
       "device",
       [](Config c) { return c.parallel.on_gpu() || c.parallel.offloads_on_cpu; }},
      {{"offload_activations"},
       "recompute_granularity = full, whose blocks keep their inputs alone",
       "recompute_granularity",
       [](Config c) { return c.model.recompute() == Recompute::full; }},
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
      {"hidden_size_per_layer_input", "hidden_size_per_layer_input = 0"},
      {"num_kv_shared_layers", "num_kv_shared_layers = 0"},
      {"log_activations", "log_activations = 0"},
      {"num_residual_streams", "num_residual_streams = 1"},
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

}  // namespace

std::vector<KeyUse> run_key_uses() {
  std::vector<KeyUse> all;
  const auto add = [&](std::vector<KeyUse> uses) { std::ranges::move(uses, std::back_inserter(all)); };
  add(data_uses());
  add(run_uses());
  add(objective_uses());
  add(optimizer_uses());
  add(parallel_uses());
  add(norm_fusion_uses());
  add(tensor_overlap_uses());
  return all;
}

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

}  // namespace witan
