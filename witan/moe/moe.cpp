#include "witan/moe/moe.h"

#include "witan/ops/elementwise.h"
#include "witan/ops/view.h"

namespace witan {

Moe::Moe(const Builder& builder, const MoeConfig& moe, const MlpConfig& mlp, int64_t width, const ModelAxes& axes)
    : Module(builder.path),
      names_(RouterRecord::named(router_statistics(moe))),
      router_(make_router(builder / "router", moe, width, axes.context)),
      dispatcher_(make_dispatcher(axes)),
      experts_(builder / "experts", moe, mlp, width) {
  add_child(*router_);
  add_child(experts_);
  if (moe.has_shared_experts()) add_child(shared_.emplace(builder / "shared_experts", moe, mlp, width));
}

MoeOutput Moe::forward(Tape& tape, const Var& x, bool rematerialise, Dropping dropping) {
  const ModuleScope scope(tape, *this);
  const auto [T, D] = x.shape().as_rows();
  const Var tokens = ops::reshape(tape, x, {T, D});
  Routing routing = router_->forward(tape, x, dropping);
  const auto run = [&](Tape& on, const Dispatched& in, const RowGroups& groups) {
    return experts_.forward(on, in, groups, rematerialise);
  };
  Var y = ops::reshape(tape, dispatcher_->forward(tape, tokens, routing, run), x.shape());
  if (shared_) y = ops::add(tape, y, shared_->forward(tape, x, rematerialise));
  return {std::move(y), std::move(routing.record)};
}

}  // namespace witan
