#include "witan/moe/router.h"

#include "witan/kernels/router.h"
#include "witan/ops/linear.h"

namespace witan {
namespace ops {

Routing route(Tape& tape, const Var& logits, int64_t topk, bool pre_softmax) {
  require<ShapeError>(logits.shape().dims() == 2 && topk >= 1 && topk <= logits.size(1),
                      "route: logits must be [T, E] with E >= ", topk, ", got ", logits.shape());
  require<ShapeError>(logits.dtype() == accumulator(logits.dtype()), "route: logits must be float32 or float64, got ",
                      logits.dtype());
  Stream& s = tape.stream();
  const int64_t T = logits.size(0), E = logits.size(1);
  const DType A = logits.dtype();
  const kernels::RouterOutputs out{
      s.empty({T, topk}, DType::i32), s.empty({T, topk}, A), s.empty({T, E}, A), s.empty({T}, A),
      s.empty({E}, DType::i64),       s.empty({1}, A),       s.empty({1}, A)};
  kernels::router_forward(s, out, logits.value(), pre_softmax);

  auto backward = [logits = tape.slot(logits), shape = logits.shape(), A, pre_softmax, ids = tape.save(out.ids),
                   weights = tape.save(out.weights), probs = tape.save(out.probs), lse = tape.save(out.lse),
                   counts = tape.save(out.counts)](Backward& b, const std::vector<Tensor>& gradients) {
    const Tensor dlogits = b.stream().empty(shape, A);
    const kernels::RouterOutputs saved{
        b.value(ids), b.value(weights), b.value(probs), b.value(lse), b.value(counts), {}, {}};
    kernels::router_backward(b.stream(), dlogits, {gradients[0], gradients[1], gradients[2]}, saved, pre_softmax);
    b.add(logits, dlogits);
  };
  const auto vars = tape.record("router", std::vector{out.weights, out.balance, out.z}, {logits}, std::move(backward));
  return {vars[0], out.ids, out.counts, out.counts, T, vars[1], vars[2]};
}

Routing limit_to_capacity(Stream& stream, Routing routing, const kernels::Capacity& capacity) {
  const int64_t T = routing.ids.size(0);
  if (capacity.per_expert >= T) return routing;  // a token visits an expert at most once
  const kernels::Assignments all{routing.ids, routing.counts},
      kept{stream.empty_like(all.ids), stream.empty_like(all.counts)};
  const Tensor order = stream.empty({all.ids.elements()}, DType::i64, MemoryTag::workspace);
  kernels::limit_to_capacity(stream, kept, order, all, routing.weights.value(), capacity);
  routing.ids = kept.ids;
  routing.kept = kept.counts;
  routing.capacity = capacity.per_expert;
  return routing;
}

}  // namespace ops

Router::Router(const Builder& builder, const MoeConfig& config, int64_t width)
    : Module(builder.path), config_(config), weight_([&]() -> Parameter& {
        Builder wide = builder;
        wide.dtype = accumulator(builder.dtype);
        return add_parameter(wide, "weight", {config.num_experts, width}, builder.linear_init(builder.init_std, width));
      }()) {}

Routing Router::forward(Tape& tape, const Var& x, Dropping dropping) {
  const ModuleScope scope(tape, *this);
  const Var logits = ops::wide_linear(tape, x, tape.parameter(weight_));
  Routing routing = ops::route(tape, logits, config_.moe_router_topk, config_.moe_router_pre_softmax);
  if (dropping == Dropping::never) return routing;
  const auto policy = config_.moe_token_drop_policy == "probs" ? DropPolicy::probs : DropPolicy::position;
  return ops::limit_to_capacity(tape.stream(), std::move(routing), {config_.expert_capacity(x.size(0)), policy});
}

}  // namespace witan
