// What a Mixture-of-Experts layer is made of; keys as in Megatron-LM.
#pragma once

#include <vector>

#include "witan/base/fields.h"
#include "witan/kernels/router.h"

namespace witan {

struct MoeConfig {
  int64_t num_experts = 8;  // 0: every block is dense
  std::string moe_layer_freq = "1";
  int64_t moe_ffn_hidden_size = 0;  // of an expert; 0: MlpConfig's ffn_hidden_size
  int64_t moe_router_topk = 2;
  std::string moe_router_score_function = "softmax";
  bool moe_router_pre_softmax = false;
  bool moe_router_enable_expert_bias = false;
  double moe_router_bias_update_rate = 1e-3;
  std::string moe_router_load_balancing_type = "aux_loss";
  double moe_aux_loss_coeff = 1e-2;
  double moe_z_loss_coeff = 0;
  double moe_expert_capacity_factor = 0;  // 0: dropless
  std::string moe_token_drop_policy = "probs";
  bool moe_pad_expert_input_to_capacity = false;
  bool moe_grouped_gemm = true;
  int64_t moe_shared_expert_intermediate_size = 0;  // 0: no shared experts

  Fields fields();
  void validate(int64_t num_layers) const;  // throws ConfigError
  // Which of `num_layers` layers are MoE layers. Throws ConfigError.
  std::vector<bool> moe_layers(int64_t num_layers) const;
  // How the router scores experts.
  kernels::Scores scores() const {
    if (moe_router_score_function == "sigmoid") return kernels::Scores::sigmoid;
    return moe_router_pre_softmax ? kernels::Scores::softmax : kernels::Scores::softmax_of_chosen;
  }
  bool has_shared_experts() const { return num_experts > 0 && moe_shared_expert_intermediate_size > 0; }
  // Assignments that an expert takes of a micro-batch of so many tokens, as Megatron-LM's get_capacity():
  // ceil(tokens topk / experts * factor), and never more than can come, which is all of them without a factor.
  int64_t expert_capacity(int64_t tokens) const;
  // Weight of the load-balancing loss: 0 when there is none.
  double balance_weight() const { return moe_router_load_balancing_type == "none" ? 0 : moe_aux_loss_coeff; }
  // Whether the load is balanced within each sequence, not within a micro-batch.
  bool balances_sequences() const { return moe_router_load_balancing_type == "seq_aux_loss"; }
  // What Megatron-LM's logs call the loss.
  const char* balance_loss_name() const {
    return balances_sequences() ? "seq_load_balancing_loss" : "load_balancing_loss";
  }
};

}  // namespace witan
