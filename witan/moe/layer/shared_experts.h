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
  // With moe_shared_expert_gate also gate.weight [1, D].
  SharedExperts(const Builder& builder, const MoeConfig& moe, const MlpConfig& mlp, int64_t width);

  // x [.., D] of the residual stream -> the same: y = mlp(x), times sigmoid(gate x) of each token where there is a gate
  // (Qwen2-MoE, arXiv:2407.10671).
  Var forward(Tape& tape, const Var& x, bool rematerialise, const Randomness& randomness = {});

 private:
  Parameter* gate_ = nullptr;
};

}  // namespace witan
