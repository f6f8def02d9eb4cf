// Checks that random configurations need exactly the planned memory for each tag, through steps, evaluations, saves and
// a sample.
#include <gtest/gtest.h>

#include <initializer_list>
#include <optional>

#include "planner/real_run.h"
#include "support/long_form.h"
#include "train/step/layouts/laid_out.h"
#include "witan/base/error.h"

namespace witan {
namespace {

// Random choices of one configuration, determined by its number.
class Draw {
 public:
  explicit Draw(uint64_t number) : rng_(2026, number) {}

  template <class T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + rng_.below(values.size(), at_++));
  }
  // True once in `times` calls on average.
  bool rarely(uint64_t times = 3) { return rng_.below(times, at_++) == 0; }
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(rng_.below(static_cast<uint64_t>(most - least + 1), at_++));
  }

 private:
  const Philox rng_;
  uint64_t at_ = 0;
};

void draw_attention(Draw& draw, ModelConfig& model) {
  model.attention.num_attention_heads = draw.one_of<int64_t>({2, 4, 8});
  model.attention.num_query_groups = draw.one_of<int64_t>({1, 2, model.attention.num_attention_heads});
  if (draw.rarely(2)) {
    model.attention.position_embedding_type = draw.one_of({"learned_absolute", "learned_absolute", "none"});
    if (model.attention.learned_positions())
      model.attention.max_position_embeddings = draw.one_of<int64_t>({16, 24, 64});
  }
  if (draw.rarely()) {
    model.norm.normalization = "LayerNorm";
    model.norm.norm_bias = draw.rarely(2);
  }
  if (draw.rarely(4)) model.hidden_dropout = model.attention.attention_dropout = 0.1;
  if (draw.rarely()) model.attention.v_head_dim = draw.one_of<int64_t>({4, 6, 12});
  if (draw.rarely()) {
    model.attention.window_size = draw.one_of({"1,0", "4,0", "9,0"});
    model.attention.window_attn_skip_freq = draw.one_of({"none", "2", "3"});
    if (model.attention.rotates() && model.attention.window_size == "4,0") model.attention.window_rotary_base = 500;
    if (draw.rarely(2)) model.attention.window_kv_channels = draw.one_of<int64_t>({4, 6});
    if (draw.rarely(2)) model.attention.window_num_query_groups = model.attention.num_attention_heads;
  }
  if (draw.rarely(4) && model.attention.v_head_dim == 0) model.attention.attention_k_eq_v = true;
  if (draw.rarely(4)) model.attention.v_l2_norm = true;
  if (model.attention.rotates() && draw.rarely(4)) model.attention.no_rope_freq = "2";
  if (draw.rarely(2)) {
    AttentionConfig& attention = model.attention;
    attention.qk_layernorm = draw.rarely(2);
    attention.qk_layernorm_full_width =
        attention.qk_layernorm && model.norm.normalization == "RMSNorm" && draw.rarely(2);
    attention.qk_layernorm_after_rope = attention.qk_layernorm && !attention.qk_layernorm_full_width && draw.rarely(3);
    attention.clip_qkv = draw.one_of({0.0, 0.0, 2.0});
    attention.softmax_type = draw.one_of({"vanilla", "learnable"});
    attention.add_qkv_bias = draw.rarely();
    model.norm_placement = draw.one_of({"pre", "post", "both"});
  }
}

void draw_moe(Draw& draw, ModelConfig& model) {
  MoeConfig& moe = model.moe;
  moe.num_experts = draw.one_of<int64_t>({0, 4, 4, 8});
  if (moe.num_experts == 0) {
    model.add_bias_linear = draw.rarely();
    return;
  }
  moe.moe_router_topk = draw.between(1, 3);
  moe.moe_router_score_function = draw.one_of({"softmax", "softmax", "sigmoid", "sqrtsoftplus"});
  moe.moe_router_pre_softmax = moe.moe_router_topk == 1 || draw.rarely(3);
  moe.moe_router_selection =
      draw.one_of({"topk", "topk", "topk", "uniform", "skew", "zipf", "hot", "hash", "sinkhorn", "expert_choice"});
  moe.moe_router_imbalance = 1.0;
  if (moe.moe_router_selection == "topk" && draw.rarely(3)) {
    moe.moe_router_num_groups = 2;
    moe.moe_router_group_topk = moe.moe_router_group_score_topk = 2;
  }
  moe.moe_router_add_bias = draw.rarely(4);
  if (draw.rarely(4)) moe.moe_input_jitter_eps = 0.1;
  moe.moe_grouped_gemm = !draw.rarely(6);
  moe.moe_z_loss_coeff = draw.one_of({0.0, 1e-3});
  moe.moe_router_load_balancing_type = draw.one_of({"aux_loss", "seq_aux_loss"});
  moe.moe_expert_capacity_factor = draw.one_of({0.0, 0.0, 0.5, 1.25});
  moe.moe_token_drop_policy = moe.experts_choose() ? "probs" : draw.one_of({"probs", "position"});
  if (draw.rarely(3))
    moe.moe_layer_freq =
        draw.one_of({std::string("2"), cat("([0]*1+[1]*", std::max<int64_t>(model.num_layers - 1, 1), ")")});
  if (draw.rarely()) moe.moe_ffn_hidden_size = draw.one_of<int64_t>({4, 12, 640});
  moe.moe_shared_expert_intermediate_size = draw.one_of<int64_t>({0, 0, 12, 40});
  moe.moe_expert_add_bias = draw.rarely();
  model.add_bias_linear = moe.moe_expert_add_bias && draw.rarely();
  if (draw.rarely()) moe.moe_latent_size = draw.one_of<int64_t>({4, 12, 20});
  moe.moe_shared_expert_gate = moe.has_shared_experts() && draw.rarely(2);
  moe.moe_parallel_mlp = model.norm_placement == "both" && draw.rarely(2);
  moe.moe_router_input_norm = draw.rarely(4);
  moe.moe_router_expert_scale = draw.rarely(4);
  moe.moe_token_dispatcher_type = draw.one_of({"alltoall", "alltoall", "allgather"});
  moe.moe_shared_expert_overlap =
      moe.has_shared_experts() && moe.moe_token_dispatcher_type == "alltoall" && draw.rarely(2);
}

void draw_model(Draw& draw, ModelConfig& model) {
  model.dtype = draw.one_of({"float32", "bfloat16", "float64"});
  model.num_layers = draw.between(1, 5);
  model.hidden_size = draw.one_of<int64_t>({16, 24, 32, 72});
  model.vocab_size = draw.one_of<int64_t>({60, 64, 300, 1004});
  model.untie_embeddings_and_output_weights = draw.rarely(2);
  model.recompute_granularity = draw.one_of({"none", "none", "selective", "full"});
  model.init_method = draw.one_of({"normal", "normal", "torch"});
  model.mlp.ffn_hidden_size = draw.one_of<int64_t>({8, 24, 52, 1100});
  model.mlp.swiglu = !draw.rarely();
  if (draw.rarely(4)) {
    if (model.mlp.swiglu)
      model.mlp.activation_func_clamp_value = 7;
    else
      model.mlp.squared_relu = true;
  }
  if (draw.rarely(2)) model.recompute_modules = draw.one_of({"layernorm", "moe_act,mlp", "moe", "shared_experts"});
  draw_attention(draw, model);
  if (draw.rarely()) {
    model.skip_connections = model.num_layers > 1;
    model.embedding_residual = draw.rarely(2);
    model.embedding_norm = draw.rarely(2);
    const AttentionConfig& attention = model.attention;
    if (!attention.attention_k_eq_v && attention.window_kv_channels == 0 && attention.window_num_query_groups == 0)
      model.value_embedding_freq = draw.one_of({std::string("none"), cat("[1]*", model.num_layers)});
  }
  if (draw.rarely()) model.logit_soft_cap = 15;
  if (draw.rarely()) model.layer_scalar = true;
  if (draw.rarely()) model.embedding_multiplier = 12;
  if (draw.rarely()) model.residual_multiplier = 0.22;
  if (draw.rarely()) model.attention.qk_l2_norm = true;
  if (draw.rarely() && model.norm.normalization == "RMSNorm") model.norm.norm_weight = false;
  draw_moe(draw, model);
}

testing::LaidOut draw_layout(Draw& draw) {
  testing::LaidOut layout;
  for (const char* axis : {"replicate", "shard", "context", "tensor", "pipeline", "expert", "expert_tensor"}) {
    const auto size = draw.one_of<int64_t>({1, 1, 1, 2, 2, 4});
    const bool of_experts = std::string_view(axis).starts_with("expert");
    if (size > 1 || (of_experts && draw.rarely(2))) layout.mesh += cat(layout.mesh.empty() ? "" : ",", axis, "=", size);
  }
  layout.strategy = draw.one_of({"auto", "optim", "optim_grads", "optim_grads_params", "optim_grads_params"});
  layout.chunks = draw.one_of<int64_t>({0, 0, 0, 2});
  layout.loss_parallel = !draw.rarely(4);
  layout.reshard_after_forward = !draw.rarely(4);
  return layout;
}

void draw_run(Draw& draw, RunConfig& config) {
  auto& train = config.train;
  train.train_iters = 10;
  train.micro_batch_size = draw.between(1, 3);
  train.global_batch_size = train.micro_batch_size * draw.between(1, 4) * config.parallel.data_ranks();
  train.sample_tokens = draw.between(0, 6);
  train.check_states = draw.rarely(6);
  config.data.seq_length = draw.one_of<int64_t>({8, 16, 24});
  config.data.reset_attention_mask = config.data.reset_position_ids = draw.rarely(4);
  config.optimizer.optimizer =
      draw.one_of({"adam", "adam", "sgd", "lion", "ademamix", "muon", "normuon", "shampoo", "soap"});
  config.optimizer.exp_avg_dtype = draw.one_of({"float32", "bfloat16"});
  config.optimizer.exp_avg_sq_dtype = draw.one_of({"float32", "bfloat16"});
  config.optimizer.muon_coefficient_type = draw.one_of({"quintic", "cubic"});
  config.optimizer.shampoo_root = draw.one_of({"eigen", "newton"});
  // Decomposing a factor of more than a thousand takes the CPU half a minute.
  config.optimizer.max_preconditioner_dim = draw.one_of<int64_t>({16, testing::long_form() ? 8192 : 512});
  if (draw.rarely(4)) config.optimizer.skip_step_sigma = 1;
  config.optimizer.lr_warmup_iters = 1;
  config.parallel.threads = draw.between(1, 2);
  config.parallel.deterministic = draw.rarely(4);
  config.parallel.overlap_param_gather = draw.rarely(2);
  config.parallel.overlap_grad_reduce = draw.rarely(2);
  if (config.model.dtype == "bfloat16" && draw.rarely()) config.parallel.gradient_dtype = "bfloat16";
  if (draw.rarely(4)) config.log.log_format = "megatron";
  config.log.timing_log_level = draw.between(0, 2);
  config.log.log_params_norm = draw.rarely(4);
  config.log.log_activations = draw.between(0, 2);
  if (!config.parallel.deterministic && draw.rarely(2)) config.parallel.gradient_norm_fusion = "true";
}

// Every second run has optimizer parameter groups, of parameter kinds that every model has except for norms without
// weights.
void draw_groups(Draw& draw, RunConfig& config) {
  std::string groups;
  for (const char* kind : {"embeddings", "norms", "matrices,experts"}) {
    if (kind == std::string_view("norms") && !config.model.norm.norm_weight) continue;
    if (draw.rarely(2)) continue;
    groups +=
        cat(groups.empty() ? "" : ", ", "{kind = \"", kind, "\", optimizer = \"", draw.one_of({"adam", "sgd", "lion"}),
            "\", shard_by = \"", draw.one_of({"elements", "matrices", "matrices"}), "\"}");
  }
  if (draw.rarely(2)) set_field(config.fields(), "optimizer_groups", "[" + groups + "]", "drawn");
}

// Every third run has frozen parameters, and every third has adapters. Adapters of experts are unsharded and have no
// dropout.
// dropout.
void draw_trained(Draw& draw, RunConfig& config) {
  ModelConfig& model = config.model;
  if (draw.rarely())
    model.freeze = draw.one_of({"embeddings", "layers.0.*", "matrices,experts", "*.k_proj.*", "norms, layers.*.moe.*"});
  if (!draw.rarely()) return;
  model.freeze.clear();
  model.lora_rank = draw.between(1, 5);
  const bool divides_experts = model.moe.num_experts > 0 && config.parallel.expert_tensor_parallel_size != 1;
  model.lora_target_modules = divides_experts ? draw.one_of({"q_proj,v_proj", "q_proj,k_proj,v_proj,o_proj"})
                                              : draw.one_of({"", "q_proj,v_proj", "o_proj,down_proj"});
  if (model.lora_target_modules == "q_proj,v_proj" && draw.rarely(2)) model.lora_dropout = 0.1;
  const bool adapts_experts = model.moe.num_experts > 0 && model.lora_target_modules.find("o_proj,") != 0 &&
                              model.lora_target_modules.find("q_proj,") != 0;
  if (model.lora_dropout == 0 && !adapts_experts) model.lora_use_dora = draw.rarely(2);
}

// nullopt if the choices are incompatible.
std::optional<RunConfig> drawn_config(Draw& draw, Draw& of_groups, Draw& of_trained) {
  constexpr int64_t kMostRanks = 8;
  RunConfig config;
  draw_model(draw, config.model);
  try {
    config = testing::laid_out(config, draw_layout(draw));
    if (config.parallel.ranks > kMostRanks) return std::nullopt;
    draw_run(draw, config);
    draw_groups(of_groups, config);
    if (!config.model.joins_layers() && of_groups.rarely()) config.model.mtp_num_layers = of_groups.between(1, 2);
    if (config.parallel.pipeline_model_parallel_size == 1 && of_groups.rarely()) {
      config.model.num_kv_shared_layers = of_groups.between(0, 2);
      config.model.use_double_wide_mlp = of_groups.rarely(2);
      config.model.hidden_size_per_layer_input = config.model.mlp.gated() ? of_groups.one_of<int64_t>({0, 4, 10}) : 0;
    }
    draw_trained(of_trained, config);
    if (of_trained.rarely(2)) config.parallel.cp_comm_type = "p2p";
    config.parallel.tp_comm_overlap = of_trained.rarely(2);
    config.parallel.offload_activations = config.parallel.offloads_on_cpu = of_trained.rarely(2);
    resolve(config, {});
  } catch (const ConfigError&) {
    return std::nullopt;
  }
  return config;
}

TEST(RandomPlans, MatchTheArenaForEveryTag) {
  const int64_t wanted = testing::steps_of(30, 500);
  int64_t checked = 0;
  for (uint64_t number = 0; checked < wanted; ++number) {
    ASSERT_LT(number, 100 * static_cast<uint64_t>(wanted)) << "too few of the drawn configurations are valid";
    Draw draw(number), of_groups(~number), of_trained(number ^ 0x5555);
    std::optional<RunConfig> config = drawn_config(draw, of_groups, of_trained);
    if (!config) continue;
    ++checked;
    const testing::RealRun run{draw.between(0, 30), static_cast<size_t>(draw.between(1, 5))};
    SCOPED_TRACE(cat("configuration ", number, ": a prompt of ", run.prompt_tokens, " tokens, ", run.evaluated,
                     " micro-batches evaluated\n", write_toml(config->fields())));
    try {
      testing::expect_kept(*config, run);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    if (HasFailure()) return;  // the other configurations would fail for the same reason
  }
}

}  // namespace
}  // namespace witan
