#include "witan/moe/moe.h"

#include "witan/ops/view.h"

namespace witan {

Moe::Moe(const Builder& builder, const MoeConfig& moe, const MlpConfig& mlp, int64_t width, const ModelAxes& axes)
    : Module(builder.path),
      expert_group_(*axes.expert),
      router_(builder / "router", moe, width),
      experts_(builder / "experts", moe, mlp, width) {
  add_child(router_);
  add_child(experts_);
}

MoeOutput Moe::forward(Tape& tape, const Var& x, bool rematerialise, Dropping dropping) {
  const ModuleScope scope(tape, *this);
  const auto [T, D] = x.shape().as_rows();
  const Var tokens = ops::reshape(tape, x, {T, D});
  const Routing routing = router_.forward(tape, tokens, dropping);
  const DispatchMap map = make_dispatch_map(tape.stream(), routing, expert_group_);
  const Dispatched in = dispatch(tape, tokens, routing.weights, map);
  const Var out = experts_.forward(tape, in, map, rematerialise);
  const Var y = combine(tape, out, map);
  return {ops::reshape(tape, y, x.shape()), routing.balance_loss, routing.z_loss, routing.counts};
}

}  // namespace witan
