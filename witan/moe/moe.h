// A Mixture-of-Experts layer (Shazeer et al., 2017): router, dispatch, experts, combine.
#pragma once

#include "witan/moe/experts.h"
#include "witan/moe/router.h"
#include "witan/nn/axes.h"

namespace witan {

struct MoeOutput {
  Var y;                     // [.., D]
  Var balance_loss, z_loss;  // [1], unscaled
  // [E] int64: assignments of a micro-batch to each expert of the world, those of tokens that other ranks of its tensor
  // or context axis hold included. Losses are of the same tokens.
  Tensor expert_counts;
};

class Moe : public Module {
 public:
  Moe(const Builder& builder, const MoeConfig& moe, const MlpConfig& mlp, int64_t width, const ModelAxes& axes);

  // x [B, S, D] of the residual stream, or [T, D]
  MoeOutput forward(Tape& tape, const Var& x, bool rematerialise, Dropping dropping = Dropping::by_capacity);

 private:
  // The pool's rows, [capacity, D].
  Var through_experts(Tape& tape, const Dispatched& in, const DispatchMap& map, bool rematerialise);

  Group& expert_group_;
  Group* expert_tensor_;  // null: experts' matrices are whole
  Router router_;
  Experts experts_;
};

}  // namespace witan
