#include "witan/moe/topk_router.h"

#include "witan/kernels/blocks.h"
#include "witan/kernels/dispatch.h"
#include "witan/moe/balance.h"
#include "witan/moe/capacity.h"
#include "witan/moe/topk.h"
#include "witan/ops/linear.h"
#include "witan/ops/redistribute.h"
#include "witan/ops/view.h"

namespace witan {

TopkRouter::TopkRouter(const Builder& builder, const MoeConfig& config, int64_t width, Group* context)
    : Router(builder.path), config_(config), context_(context), weight_([&]() -> Parameter& {
        Builder wide = builder.of_kind(ParameterKind::routers);
        wide.dtype = accumulator(builder.dtype);
        return add_parameter(wide, "weight", {config.num_experts, width}, builder.linear_init(builder.init_std, width));
      }()) {
  if (builder.tensor && builder.tensor->residual.kind == Placement::Kind::shard) axis_.emplace(*builder.tensor);
}

Routing TopkRouter::forward(Tape& tape, const Var& x, Dropping dropping) {
  const ModuleScope scope(tape, *this);
  const auto [T, D] = x.shape().as_rows();
  const Var logits = ops::wide_linear(tape, ops::reshape(tape, x, {T, D}), tape.parameter(weight_));
  if (axis_) return route_gathered(tape, logits, x.shape(), dropping);
  return route(tape, logits, x.shape().dims() == 3 ? x.size(0) : 1, dropping);
}

// logits [T, E], of so many sequences
Routing TopkRouter::route(Tape& tape, const Var& logits, int64_t sequences, Dropping dropping) const {
  Group* const parts = dropping == Dropping::never ? nullptr : context_;  // what it decides needs no others
  const int64_t runs = dropping == Dropping::never ? 1 : balanced_runs(config_, sequences);
  Routing routing = ops::route(tape, logits, {config_.moe_router_topk, config_.scores()}, parts, runs);
  if (dropping == Dropping::never) return routing;
  const int64_t tokens = logits.size(0) * (parts ? parts->size() : 1);
  return ops::limit_to_capacity(tape.stream(), std::move(routing), capacity_of(config_, tokens), parts, sequences);
}

// logits [B S/n, E] of x [B, S/n, D]
Routing TopkRouter::route_gathered(Tape& tape, const Var& logits, const Shape& x, Dropping dropping) const {
  const int64_t B = x[0], n = axis_->group.size(), own = x[1], E = logits.size(1), K = config_.moe_router_topk;
  const auto shared = [&](const Var& part, const Placement& from, const Placement& to) {
    return ops::redistribute(tape, part, axis_->group, from, to);
  };
  const Var all = shared(ops::reshape(tape, logits, {B, own, E}), Placement::shard(1), Placement::replicate());
  Routing routing = route(tape, ops::reshape(tape, all, {B * n * own, E}), B, dropping);
  const Var weights =
      shared(ops::reshape(tape, routing.weights, {B, n * own, K}), Placement::replicate(), Placement::shard(1));
  routing.weights = ops::reshape(tape, weights, {B * own, K});
  Stream& stream = tape.stream();
  const Tensor ids = stream.empty({B * own, K}, DType::i32);
  kernels::take_part(stream, ids.reshape({B, own * K}), routing.ids.reshape({B, n, own * K}), axis_->group.rank());
  routing.ids = ids;
  routing.kept = stream.empty({E}, DType::i64);
  kernels::count_assignments(stream, routing.kept, ids);
  return routing;
}

}  // namespace witan
