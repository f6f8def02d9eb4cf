// What a Mixture-of-Experts layer is made of; keys as in Megatron-LM.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/base/config/fields.h"
#include "witan/kernels/moe/scores.h"

namespace witan {

// A loss that falls as the load of experts becomes even.
struct BalanceLoss {
  enum class Over : uint8_t { micro_batch, sequence, global_batch };  // whose tokens are to be spread evenly
  Over over;
  double coefficient;

  const char* tag() const;  // what Megatron-LM's logs call it
};

struct MoeConfig {
  int64_t num_experts = 8;  // 0: every block is dense
  std::string moe_layer_freq = "1";
  int64_t moe_ffn_hidden_size = 0;  // of an expert; 0: MlpConfig's ffn_hidden_size
  int64_t moe_router_topk = 2;
  std::string moe_router_score_function = "softmax";
  bool moe_router_pre_softmax = false;
  std::string moe_router_selection = "topk";
  int64_t moe_router_num_groups = 0;        // 0: experts are not in groups
  int64_t moe_router_group_topk = 0;        // groups that a token's experts come from
  int64_t moe_router_group_score_topk = 0;  // best scores of a group that are its score; 0: topk / group_topk
  std::string moe_router_norm_topk_prob = "auto";
  double moe_router_topk_scaling_factor = 1;
  bool moe_router_add_bias = false;  // to the logits
  double moe_input_jitter_eps = 0;
  int64_t moe_router_sinkhorn_iterations = 100;  // at most
  double moe_router_sinkhorn_tolerance = 1e-4;
  double moe_router_skew = 0.5;     // of moe_router_selection = "skew"
  double moe_router_imbalance = 0;  // of moe_router_selection = "zipf"; 0: zipf_imbalance()
  bool moe_router_enable_expert_bias = false;
  double moe_router_bias_update_rate = 1e-3;
  std::string moe_router_load_balancing_type = "aux_loss";  // one or several, with commas between them
  std::string moe_aux_loss_coeff = "0.01";                  // of each of these, likewise
  std::string moe_global_load = "last_step";                // of global_aux_loss: last_step | so_far
  double moe_z_loss_coeff = 0;
  double moe_expert_capacity_factor = 0;  // 0: dropless
  std::string moe_token_drop_policy = "probs";
  bool moe_pad_expert_input_to_capacity = false;
  bool moe_grouped_gemm = true;
  std::string moe_expert_backend = "grouped";
  bool moe_expert_add_bias = false;
  int64_t moe_latent_size = 0;  // 0: experts read the residual stream as it is
  std::string moe_token_dispatcher_type = "alltoall";
  double moe_pool_factor = 0;                       // 0: room for the worst case
  double moe_exchange_factor = 0;                   // 0: rows travel as they come
  int64_t moe_replicated_experts = 0;               // replicas that a rank may hold of others' experts; 0: none
  int64_t moe_shared_expert_intermediate_size = 0;  // 0: no shared experts
  bool moe_shared_expert_gate = false;
  bool moe_shared_expert_overlap = false;
  bool moe_per_layer_logging = false;

  Fields fields();
  void validate(int64_t num_layers) const;  // throws ConfigError
  // Which of `num_layers` layers are MoE layers. Throws ConfigError.
  std::vector<bool> moe_layers(int64_t num_layers) const;
  // How the router scores experts and weighs the chosen.
  kernels::Scoring scoring() const;
  // Best scores of a group of experts that are its score, where there are groups.
  int64_t group_score_topk() const;
  // The largest load over the mean that moe_router_selection = "zipf" aims at: where nothing else is asked for 4, or
  // the most that there can be, which is less where a token has more than a quarter of the experts.
  double zipf_imbalance() const;
  // Whether experts choose tokens.
  bool experts_choose() const { return moe_router_selection == "expert_choice"; }
  bool has_shared_experts() const { return num_experts > 0 && moe_shared_expert_intermediate_size > 0; }
  // Assignments that an expert takes of a micro-batch of so many tokens, as Megatron-LM's get_capacity():
  // ceil(tokens topk / experts * factor), and never more than can come, which is all of them without a factor. Experts
  // that choose tokens take as many, with a factor of 1 where there is none.
  int64_t expert_capacity(int64_t tokens) const;
  double capacity_factor() const;  // of those; 0: experts take all
  // The load-balancing losses, which have a type and a coefficient each, in the order of BalanceLoss::Over: none, one
  // or several. Throws ConfigError where the two keys do not say which.
  std::vector<BalanceLoss> balance_losses() const;
  // Whether one of them balances the load of the step before.
  bool balances_last_load() const;
  // Whether experts are chosen by a bias beside their scores.
  bool chooses_by_bias() const { return moe_router_enable_expert_bias || balances_by_quantiles(); }
  // Whether experts are chosen by a bias that quantiles of the logits set (kernels/moe/selection.h).
  bool balances_by_quantiles() const { return moe_router_load_balancing_type == "quantile_balancing"; }
};

}  // namespace witan
