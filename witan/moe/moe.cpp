#include "witan/moe/moe.h"

#include "witan/moe/expert_tensor.h"
#include "witan/ops/view.h"

namespace witan {

Moe::Moe(const Builder& builder, const MoeConfig& moe, const MlpConfig& mlp, int64_t width, const ModelAxes& axes)
    : Module(builder.path),
      expert_group_(*axes.expert),
      expert_tensor_(ModelAxes::size(axes.expert_tensor) > 1 ? axes.expert_tensor : nullptr),
      router_(builder / "router", moe, width, axes.context),
      experts_(builder / "experts", moe, mlp, width) {
  add_child(router_);
  add_child(experts_);
}

MoeOutput Moe::forward(Tape& tape, const Var& x, bool rematerialise, Dropping dropping) {
  const ModuleScope scope(tape, *this);
  const auto [T, D] = x.shape().as_rows();
  const Var tokens = ops::reshape(tape, x, {T, D});
  const Routing routing = router_.forward(tape, x, dropping);
  const DispatchMap map = make_dispatch_map(tape.stream(), routing, expert_group_);
  const Dispatched in = dispatch(tape, tokens, routing.weights, map);
  const Var y = combine(tape, through_experts(tape, in, map, rematerialise), map);
  return {ops::reshape(tape, y, x.shape()), routing.balance_loss, routing.z_loss, routing.counts};
}

Var Moe::through_experts(Tape& tape, const Dispatched& in, const DispatchMap& map, bool rematerialise) {
  if (!expert_tensor_) return experts_.forward(tape, in, map.groups, rematerialise);
  const MergedPools merged = merge_pools(tape.stream(), map, *expert_tensor_);
  const Dispatched all = gather_pools(tape, in, merged);
  return scatter_sums(tape, experts_.forward(tape, all, merged.groups, rematerialise), merged);
}

}  // namespace witan
