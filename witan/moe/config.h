// The configuration of Mixture-of-Experts layers; keys as in Megatron-LM.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/base/config/fields.h"
#include "witan/kernels/moe/scores.h"

namespace witan {

// A loss that falls as the load of experts becomes even.
struct BalanceLoss {
  enum class Over : uint8_t { micro_batch, sequence, global_batch };  // the tokens whose load is evened
  Over over;
  double coefficient;

  const char* tag() const;  // its name in Megatron-LM's logs
};

struct MoeConfig {
  int64_t num_experts = 8;  // 0: every block is dense
  std::string moe_layer_freq = "1";
  int64_t moe_ffn_hidden_size = 0;  // an expert's; 0: MlpConfig's ffn_hidden_size
  int64_t moe_router_topk = 2;
  std::string moe_router_score_function = "softmax";
  bool moe_router_pre_softmax = false;
  std::string moe_router_selection = "topk";
  int64_t moe_n_hash_layers = 0;            // first layers whose experts a table chooses by the token
  int64_t moe_router_num_groups = 0;        // 0: experts are not in groups
  int64_t moe_router_group_topk = 0;        // groups from which a token's experts come
  int64_t moe_router_group_score_topk = 0;  // best scores that sum to a group's score; 0: topk / group_topk
  std::string moe_router_norm_topk_prob = "auto";
  double moe_router_topk_scaling_factor = 1;
  bool moe_router_add_bias = false;  // to the logits
  bool moe_router_input_norm = false;
  bool moe_router_expert_scale = false;
  double moe_input_jitter_eps = 0;
  int64_t moe_router_sinkhorn_iterations = 100;  // at most
  double moe_router_sinkhorn_tolerance = 1e-4;
  double moe_router_skew = 0.5;     // for moe_router_selection = "skew"
  double moe_router_imbalance = 0;  // for moe_router_selection = "zipf"; 0: zipf_imbalance()
  bool moe_router_enable_expert_bias = false;
  double moe_router_bias_update_rate = 1e-3;
  std::string moe_router_load_balancing_type = "aux_loss";  // one or several, with commas between them
  std::string moe_aux_loss_coeff = "0.01";                  // one for each, with commas between them
  std::string moe_global_load = "last_step";                // for global_aux_loss: last_step | so_far
  double moe_z_loss_coeff = 0;
  double moe_expert_capacity_factor = 0;  // 0: dropless
  std::string moe_token_drop_policy = "probs";
  bool moe_pad_expert_input_to_capacity = false;
  bool moe_grouped_gemm = true;
  std::string moe_expert_backend = "grouped";
  bool moe_expert_add_bias = false;
  int64_t moe_latent_size = 0;  // 0: experts read the residual stream itself
  std::string moe_token_dispatcher_type = "alltoall";
  double moe_pool_factor = 0;                       // 0: room for the worst case
  double moe_exchange_factor = 0;                   // 0: rows travel with exact counts
  int64_t moe_replicated_experts = 0;               // replicas of other ranks' experts that a rank may hold
  int64_t moe_shared_expert_intermediate_size = 0;  // 0: no shared experts
  bool moe_shared_expert_gate = false;
  bool moe_parallel_mlp = false;
  bool moe_shared_expert_overlap = false;
  bool moe_per_layer_logging = false;

  // Tokens in the table that chooses this layer's experts; 0: there is none. No key sets it.
  int64_t table_tokens = 0;

  Fields fields();
  // This configuration in a layer whose experts a table of `vocabulary` tokens chooses.
  MoeConfig with_table(int64_t vocabulary) const;
  void validate(int64_t num_layers) const;  // throws ConfigError
  // Whether each of `num_layers` layers is an MoE layer. Throws ConfigError.
  std::vector<bool> moe_layers(int64_t num_layers) const;
  // How the router scores experts and weighs the chosen ones.
  kernels::Scoring scoring() const;
  // How many of a group's best scores sum to its score, if experts are in groups.
  int64_t group_score_topk() const;
  // The largest load over the mean that moe_router_selection = "zipf" aims at: by default 4, or the largest possible if
  // that is less, which is so if a token visits more than a quarter of the experts.
  double zipf_imbalance() const;
  // Whether experts choose tokens.
  bool experts_choose() const { return moe_router_selection == "expert_choice"; }
  bool has_shared_experts() const { return num_experts > 0 && moe_shared_expert_intermediate_size > 0; }
  // Assignments that an expert keeps of a micro-batch of `tokens` tokens, as Megatron-LM's get_capacity():
  // ceil(tokens topk / experts * factor), and at most `tokens`, which is the capacity without a factor. Experts that
  // choose tokens choose as many, with a factor of 1 if none is set.
  int64_t expert_capacity(int64_t tokens) const;
  double capacity_factor() const;  // of expert_capacity(); 0: experts keep all
  // The load-balancing losses in the order of BalanceLoss::Over; may be empty. Throws ConfigError if the keys for types
  // and coefficients do not match.
  std::vector<BalanceLoss> balance_losses() const;
  // Whether one of them balances the previous step's load.
  bool balances_last_load() const;
  // Whether a bias is added to the scores by which experts are chosen.
  bool chooses_by_bias() const { return moe_router_enable_expert_bias || balances_by_quantiles(); }
  // Whether quantiles of the logits set this bias (kernels/moe/selection.h).
  bool balances_by_quantiles() const { return moe_router_load_balancing_type == "quantile_balancing"; }
};

}  // namespace witan
