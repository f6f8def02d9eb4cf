// Which experts a token visits, and with what weight. The router computes in float32 (float64 models: float64).
#pragma once

#include "witan/moe/config.h"
#include "witan/nn/module.h"

namespace witan {

// The immutable result of routing T tokens: shared by dispatch, experts, combine and the report.
struct Routing {
  Var weights;       // [T, K] accumulator dtype
  Tensor ids;        // [T, K] int32
  Tensor counts;     // [E] int64: assignments per expert
  Var balance_loss;  // [1] unscaled: 1 when the load is even
  Var z_loss;        // [1] unscaled
};

namespace ops {
// logits [T, E] accumulator dtype; mathematics in kernels/router.h. Throws ShapeError.
Routing route(Tape& tape, const Var& logits, int64_t topk, bool pre_softmax);
}  // namespace ops

class Router : public Module {
 public:
  // weight [E, D]
  Router(const Builder& builder, const MoeConfig& config, int64_t width);

  Routing forward(Tape& tape, const Var& x);  // x [T, D]

 private:
  MoeConfig config_;
  Parameter& weight_;
};

}  // namespace witan
