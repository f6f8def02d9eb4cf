// A Mixture-of-Experts layer (Shazeer et al., 2017): router, dispatch, experts, combine.
#pragma once

#include "witan/moe/experts.h"
#include "witan/moe/router.h"
#include "witan/nn/axes.h"

namespace witan {

struct MoeOutput {
  Var y;                     // [.., D]
  Var balance_loss, z_loss;  // [1], unscaled
  Tensor expert_counts;      // [E] int64: this rank's assignments to each expert of the world
};

class Moe : public Module {
 public:
  Moe(const Builder& builder, const MoeConfig& moe, const MlpConfig& mlp, int64_t width, const ModelAxes& axes);

  // x [.., D]
  MoeOutput forward(Tape& tape, const Var& x, bool rematerialise, Dropping dropping = Dropping::by_capacity);

 private:
  Group& expert_group_;
  Router router_;
  Experts experts_;
};

}  // namespace witan
