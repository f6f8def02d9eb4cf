#include "witan/moe/layer/shared_experts.h"

#include "witan/ops/linear/linear.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan {

MlpConfig shared_experts_mlp(const MoeConfig& moe, MlpConfig expert) {
  expert.ffn_hidden_size = moe.has_shared_experts() ? moe.moe_shared_expert_intermediate_size : 0;
  return expert;
}

SharedExperts::SharedExperts(const Builder& builder, const MoeConfig& moe, const MlpConfig& mlp, int64_t width)
    : Mlp(builder, shared_experts_mlp(moe, mlp), width) {
  if (!moe.moe_shared_expert_gate) return;
  gate_ = &add_parameter((builder / "gate").of_kind(ParameterKind::routers), "weight", {1, width},
                         builder.linear_init(builder.init_std, width));
}

Var SharedExperts::forward(Tape& tape, const Var& x, bool rematerialise, const Randomness& randomness) {
  const Var y = Mlp::forward(tape, x, rematerialise, randomness);
  return gate_ ? ops::row_gate(tape, y, ops::linear(tape, x, tape.parameter(*gate_), {})) : y;
}

}  // namespace witan
