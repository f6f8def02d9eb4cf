// Experts that every token visits beside those that it is routed to (Dai et al., "DeepSeekMoE", 2024): an MLP of the
// residual stream, divided over the tensor axis as a dense block's, whose output is added.
#pragma once

#include "witan/moe/config.h"
#include "witan/nn/mlp.h"

namespace witan {

// The shared experts of an MoE layer as an MLP; `expert`: a routed one. Its ffn_hidden_size is 0 where there are none.
MlpConfig shared_experts_mlp(const MoeConfig& moe, MlpConfig expert);

class SharedExperts : public Mlp {
 public:
  // Several shared experts are one MLP of their inner sizes' sum, moe_shared_expert_intermediate_size. `mlp`: of a
  // routed expert, whose activation it has. No biases, as Megatron-LM's.
  SharedExperts(const Builder& builder, const MoeConfig& moe, const MlpConfig& mlp, int64_t width);
};

}  // namespace witan
