// A small run with experts, and its variants with all kinds of routers, losses and random draws.
#pragma once

#include <functional>
#include <ostream>
#include <vector>

#include "train/step/layouts/laid_out.h"

namespace witan::testing {

inline RunConfig router_recipe() {
  RunConfig config = divisible_config();
  config.model.num_layers = 2;
  config.model.moe.moe_z_loss_coeff = 1e-3;
  config.train.micro_batch_size = 2;
  config.train.check_states = true;
  return laid_out(config, {});
}

struct RouterVariant {
  const char* name;
  std::function<void(ModelConfig&)> change;
};
inline void PrintTo(const RouterVariant& variant, std::ostream* out) {
  *out << variant.name;
}

inline std::vector<RouterVariant> router_variants() {
  return {
      {"MicroBatchLoss", [](ModelConfig&) {}},
      {"BiasAndCapacity",
       [](ModelConfig& model) {
         model.moe.moe_router_load_balancing_type = "seq_aux_loss";
         model.moe.moe_router_score_function = "sigmoid";
         model.moe.moe_router_enable_expert_bias = true;
         model.moe.moe_router_bias_update_rate = 0.02;
         model.moe.moe_expert_capacity_factor = 0.7;
       }},
      {"AllLossesAndPositions",
       [](ModelConfig& model) {
         model.moe.moe_router_load_balancing_type = "aux_loss,seq_aux_loss,global_aux_loss";
         model.moe.moe_aux_loss_coeff = "0.5,0.25,1";
         model.moe.moe_expert_capacity_factor = 1;
         model.moe.moe_token_drop_policy = "position";
         model.recompute_granularity = "full";
       }},
      {"GroupsBiasesAndScaledScores",
       [](ModelConfig& model) {
         model.moe.moe_router_score_function = "sqrtsoftplus";
         model.moe.moe_router_norm_topk_prob = "false";
         model.moe.moe_router_topk_scaling_factor = 1.5;
         model.moe.moe_router_num_groups = 4;
         model.moe.moe_router_group_topk = 2;
         model.moe.moe_router_add_bias = true;
         model.moe.moe_router_enable_expert_bias = true;
         model.moe.moe_router_bias_update_rate = 0.02;
       }},
      {"Quantiles", [](ModelConfig& model) { model.moe.moe_router_load_balancing_type = "quantile_balancing"; }},
      {"Sinkhorn", [](ModelConfig& model) { model.moe.moe_router_selection = "sinkhorn"; }},
      {"ExpertChoice",
       [](ModelConfig& model) {
         model.moe.moe_router_selection = "expert_choice";
         model.moe.moe_router_pre_softmax = true;
       }},
      {"Hash", [](ModelConfig& model) { model.moe.moe_router_selection = "hash"; }},
      {"Uniform", [](ModelConfig& model) { model.moe.moe_router_selection = "uniform"; }},
      {"Skew", [](ModelConfig& model) { model.moe.moe_router_selection = "skew"; }},
      {"Zipf",
       [](ModelConfig& model) {
         model.moe.moe_router_selection = "zipf";
         model.moe.moe_router_imbalance = 1.5;
       }},
      {"Hot", [](ModelConfig& model) { model.moe.moe_router_selection = "hot"; }},
      {"NoiseOnTheInput", [](ModelConfig& model) { model.moe.moe_input_jitter_eps = 0.3; }},
      {"Dropout",
       [](ModelConfig& model) {
         model.hidden_dropout = 0.1;
         model.attention.attention_dropout = 0.2;
       }},
      {"TokensAhead", [](ModelConfig& model) { model.mtp_num_layers = 1; }},
  };
}

}  // namespace witan::testing
