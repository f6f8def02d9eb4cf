#include "witan/convert/model_function.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>

#include "witan/base/error.h"

namespace witan {
namespace {

// Keys that training may change.
constexpr std::string_view kOfTraining[] = {"dtype",
                                            "init_method",
                                            "init_method_std",
                                            "recompute_granularity",
                                            "recompute_modules",
                                            "hidden_dropout",
                                            "neftune_noise_alpha",
                                            "attention_dropout",
                                            "make_vocab_size_divisible_by",
                                            "dsa_indexer_loss_coeff",
                                            "dsa_indexer_use_sparse_loss",
                                            "moe_input_jitter_eps",
                                            "moe_router_bias_update_rate",
                                            "moe_router_load_balancing_type",
                                            "moe_aux_loss_coeff",
                                            "moe_global_load",
                                            "moe_z_loss_coeff",
                                            "moe_expert_capacity_factor",
                                            "moe_token_drop_policy",
                                            "moe_pad_expert_input_to_capacity",
                                            "moe_grouped_gemm",
                                            "moe_expert_backend",
                                            "moe_token_dispatcher_type",
                                            "moe_pool_factor",
                                            "moe_exchange_factor",
                                            "moe_replicated_experts",
                                            "moe_per_layer_logging",
                                            "moe_shared_expert_overlap",
                                            "moe_router_skew",
                                            "moe_router_imbalance",
                                            "moe_router_sinkhorn_iterations",
                                            "moe_router_sinkhorn_tolerance",
                                            "freeze",
                                            "frozen_format",
                                            "frozen_experts_format",
                                            "frozen_head_format",
                                            "fp8_format",
                                            "fp8_recipe",
                                            "fp8_keep_weights",
                                            "fp8_margin",
                                            "fp8_amax_history_len",
                                            "fp8_amax_compute_algo",
                                            "first_last_layers_bf16",
                                            "num_layers_at_start_in_bf16",
                                            "num_layers_at_end_in_bf16",
                                            "rope_long_context",
                                            "lora_dropout",
                                            "mtp_num_layers",
                                            "mtp_loss_scaling_factor"};

// Whether there are biases in the projections of queries, keys and values, in attention's output and in dense MLPs,
// whichever key asks for them.
std::array<bool, 3> biases_of(const ModelConfig& model) {
  const AttentionConfig& attention = model.attention;
  const bool every = model.add_bias_linear, all_of_attention = every || attention.add_attention_bias;
  const bool dense = std::ranges::any_of(model.layers(), [](const LayerSpec& layer) {
    return (!layer.moe && layer.has_mlp()) || layer.parallel_mlp.has_value();
  });
  return {all_of_attention || attention.add_qkv_bias, all_of_attention, dense && (every || model.add_mlp_bias)};
}

// Whether two patterns of layers select the same layers.
bool same_value(const ModelConfig& a, const ModelConfig& b, const Field& of_a, const Field& of_b) {
  if (of_a.text() == of_b.text()) return true;
  const auto layers = [](const ModelConfig& config) { return config.layers(); };
  if (a.num_layers != b.num_layers) return false;
  const auto same_heads = [&](const auto& size) {
    const auto of = [&](const LayerSpec& layer) {
      const AttentionSpec* const attention = attention_of(layer.mixer);
      return attention ? size(*attention) : 0;
    };
    return std::ranges::equal(layers(a), layers(b), {}, of, of);
  };
  if (of_a.name.starts_with("window_rotary_") || of_a.name == "window_rope_scaling" || of_a.name == "rotary_percent" ||
      of_a.name == "rotary_proportional")
    return std::ranges::equal(
        layers(a), layers(b), {}, [](const LayerSpec& x) { return rotation_of(x.mixer); },
        [](const LayerSpec& x) { return rotation_of(x.mixer); });
  if (of_a.name.starts_with("rotary_")) return !a.attention.rotates() && !b.attention.rotates();
  if (of_a.name == "moe_layer_freq")
    return std::ranges::equal(layers(a), layers(b), {}, &LayerSpec::moe, &LayerSpec::moe);
  if (of_a.name == "linear_attention_freq")
    return a.linear_attention.layers(a.num_layers) == b.linear_attention.layers(b.num_layers);
  if (of_a.name == "mamba_num_heads")
    return a.mamba.spec(a.hidden_size).num_heads == b.mamba.spec(b.hidden_size).num_heads;
  if (of_a.name.starts_with("mamba_")) return !a.has_mamba() && !b.has_mamba();
  if (of_a.name.starts_with("linear_")) {
    const auto idle = [](const LinearAttentionConfig& one) { return !one.any() || one.mamba2(); };
    return idle(a.linear_attention) && idle(b.linear_attention);
  }
  if (of_a.name == "window_attn_skip_freq" || of_a.name == "window_size")
    return std::ranges::equal(
        layers(a), layers(b), {}, [](const LayerSpec& x) { return window_of(x.mixer); },
        [](const LayerSpec& x) { return window_of(x.mixer); });
  if (of_a.name == "rope_short_factors" || of_a.name == "rope_long_factors") {
    const auto factors = [&](const Field& of) { return read_rope_factors(of.name.c_str(), of.text()); };
    return a.attention.rope_scaling_type != "longrope" || factors(of_a) == factors(of_b);
  }
  if (of_a.name == "add_bias_linear" || of_a.name == "add_qkv_bias" || of_a.name == "add_attention_bias" ||
      of_a.name == "add_mlp_bias")
    return biases_of(a) == biases_of(b);
  const auto is_gelu = [](const MlpConfig& mlp) {
    return !mlp.swiglu && !mlp.silu && !mlp.squared_relu && !mlp.squared_reglu;
  };
  if (of_a.name == "gelu_tanh") return !is_gelu(a.mlp) && !is_gelu(b.mlp);
  if (of_a.name == "num_query_groups" || of_a.name == "window_num_query_groups")
    return same_heads([](const AttentionSpec& spec) { return spec.num_query_groups; });
  if (of_a.name == "kv_channels" || of_a.name == "window_kv_channels")
    return same_heads([](const AttentionSpec& spec) { return spec.qk_head_dim; });
  if (of_a.name == "v_head_dim") return same_heads([](const AttentionSpec& spec) { return spec.v_head_dim; });
  if (of_a.name == "attention_k_eq_v")
    return same_heads([](const AttentionSpec& spec) {
      const auto* const heads = dynamic_cast<const MultiHeadSpec*>(&spec);
      return heads != nullptr && heads->values_from_keys ? 1 : 0;
    });
  if (of_a.name == "ffn_hidden_size" || of_a.name == "moe_ffn_hidden_size")
    return std::ranges::equal(
        layers(a), layers(b), {}, [](const LayerSpec& x) { return x.mlp.ffn_hidden_size; },
        [](const LayerSpec& x) { return x.mlp.ffn_hidden_size; });
  if (of_a.name == "moe_router_pre_softmax" || of_a.name == "moe_router_norm_topk_prob") {
    const kernels::Scoring x = a.moe.scoring(), y = b.moe.scoring();
    const bool softmax = !kernels::scores_each_alone(x.scores);  // already normalised
    return x.scores == y.scores && (softmax || x.normalised == y.normalised);
  }
  if (of_a.name == "moe_router_group_score_topk" && a.moe.moe_router_group_topk > 0 && b.moe.moe_router_group_topk > 0)
    return a.moe.group_score_topk() == b.moe.group_score_topk();
  // Adapters may be added to a model, but not dropped (train/weights/initial_weights.h).
  if (of_a.name.starts_with("lora_")) return a.lora_rank == 0 || b.lora_rank == 0;
  // It limits only learned positions.
  if (of_a.name == "max_position_embeddings") return !a.attention.learned_positions();
  return false;
}

}  // namespace

bool shapes_function(const Field& field) {
  return (field.section == "model" || field.section == "moe") &&
         std::ranges::find(kOfTraining, field.name) == std::end(kOfTraining);
}

std::vector<std::string> differences(ModelConfig a, ModelConfig b) {
  std::vector<std::string> all;
  const Fields of_a = a.fields(), of_b = b.fields();
  // Without experts, their keys say nothing.
  const bool dense = a.moe.num_experts == 0 && b.moe.num_experts == 0;
  for (size_t i = 0; i < of_a.size(); ++i) {
    if (!shapes_function(of_a[i]) || (dense && of_a[i].section == "moe")) continue;
    if (!same_value(a, b, of_a[i], of_b[i]))
      all.push_back(cat(of_a[i].name, " = ", of_a[i].text(), ", not ", of_b[i].text()));
  }
  return all;
}

}  // namespace witan
