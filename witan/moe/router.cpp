#include "witan/moe/router.h"

#include "witan/kernels/router.h"
#include "witan/ops/elementwise.h"
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
  return {vars[0], out.ids, out.counts, vars[1], vars[2]};
}

}  // namespace ops

Router::Router(const Builder& builder, const MoeConfig& config, int64_t width)
    : Module(builder.path), config_(config), weight_([&]() -> Parameter& {
        Builder wide = builder;
        wide.dtype = accumulator(builder.dtype);
        return add_parameter(wide, "weight", {config.num_experts, width},
                             {Initialization::Kind::normal, builder.init_std});
      }()) {}

Routing Router::forward(Tape& tape, const Var& x) {
  const ModuleScope scope(tape, *this);
  const Var wide = ops::cast(tape, x, accumulator(x.dtype()));
  const Var logits = ops::linear(tape, wide, tape.parameter(weight_), {});
  return ops::route(tape, logits, config_.moe_router_topk, config_.moe_router_pre_softmax);
}

}  // namespace witan
