#include "witan/ops/cross_entropy.h"

#include "witan/kernels/cross_entropy.h"

namespace witan::ops {
namespace {

void check(const Var& logits, const Tensor& targets, const Tensor& weights) {
  require<ShapeError>(logits.shape().dims() == 2 && is_floating(logits.dtype()) && logits.value().contiguous(),
                      "cross_entropy: logits must be [T, V], floating and contiguous, got ", logits.dtype(), " ",
                      logits.shape());
  const int64_t T = logits.size(0);
  require<ShapeError>(targets.shape() == Shape{T} && targets.dtype() == DType::i32,
                      "cross_entropy: targets must be [T=", T, "] int32, got ", targets.dtype(), " ", targets.shape());
  require<ShapeError>(weights.shape() == Shape{T} && weights.dtype() == accumulator(logits.dtype()),
                      "cross_entropy: weights must be [T=", T, "] ", accumulator(logits.dtype()), ", got ",
                      weights.dtype(), " ", weights.shape());
}

void check_targets(const Tensor& targets, const Tensor& weights, int64_t V) {
  dispatch_floating(weights.dtype(), [&]<class A>() {
    for (int64_t t = 0; t < targets.elements(); ++t) {
      const int32_t target = targets.data<int32_t>()[t];
      require<DataError>((target >= 0 && target < V) || weights.data<A>()[t] == A(0.0f), "cross_entropy: target ",
                         target, " at index ", t, " is not one of the ", V, " logits, and its weight is not 0");
    }
  });
}

// The backward has nothing left to do but to hand over what the forward computed.
Var with_gradient(Tape& tape, const kernels::CrossEntropyOutputs& out, const Var& logits, const Tensor& targets,
                  const Tensor& weights) {
  kernels::cross_entropy_fused(tape.stream(), out, logits.value(), targets, weights);
  return tape.record("cross_entropy", out.loss, {logits},
                     [slot = tape.slot(logits), dlogits = tape.save(out.dlogits)](Backward& b, const Tensor&) mutable {
                       Tensor gradient = b.value(dlogits);
                       dlogits = Saved();
                       b.add(slot, std::move(gradient));
                     });
}

}  // namespace

CrossEntropy cross_entropy(Tape& tape, Var logits, const Tensor& targets, const Tensor& weights,
                           LossGradient gradient) {
  check(logits, targets, weights);
  Stream& s = tape.stream();
  // A GPU is not waited for.
  if (s.device().kind == Device::Kind::cpu) check_targets(targets, weights, logits.size(1));
  const Tensor loss = s.empty({1}, weights.dtype()), losses = s.empty_like(weights), lse = s.empty_like(weights);
  if (gradient == LossGradient::one && tape.recording() && logits.needs_gradient()) {
    const Tensor dlogits = logits.unique() ? logits.value() : s.empty_like(logits.value());
    return {with_gradient(tape, {loss, losses, lse, dlogits}, logits, targets, weights), losses};
  }
  kernels::cross_entropy_forward(s, loss, losses, lse, logits.value(), targets, weights);
  Var var = tape.record("cross_entropy", loss, {logits},
                        [logits = tape.save(logits), lse = tape.save(lse), targets = tape.save(targets),
                         weights = tape.save(weights)](Backward& b, const Tensor& dloss) mutable {
                          const Tensor in = b.value(logits);
                          const Slot slot = logits;
                          logits = Saved();  // from here on `in` alone stands for this closure
                          const Tensor dlogits = in.unique() ? in : b.stream().empty_like(in);
                          kernels::cross_entropy_backward(b.stream(), dlogits, dloss, in, b.value(lse),
                                                          b.value(targets), b.value(weights));
                          b.add(slot, dlogits);
                        });
  return {std::move(var), losses};
}

}  // namespace witan::ops
