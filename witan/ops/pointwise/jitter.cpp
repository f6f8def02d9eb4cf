#include "witan/ops/pointwise/jitter.h"

namespace witan::ops {

Var jitter(Tape& tape, const Var& x, const kernels::Dropout& where, double eps) {
  require<ShapeError>(eps >= 0 && eps < 1, "jitter: eps must be at least 0 and below 1, got ", eps);
  if (eps == 0) return x;
  require<ShapeError>(is_floating(x.dtype()) && x.value().contiguous(),
                      "jitter: x must be floating and contiguous, got ", x.dtype(), " ", x.shape());
  require<ShapeError>(
      where.step.defined() && where.step.shape() == Shape{kernels::kStepValues} && where.step.dtype() == DType::f64,
      "jitter: noise needs step, float64 [", kernels::kStepValues, "]");
  require<ShapeError>(where.part.length == 0 || x.value().elements() % where.part.length == 0, "jitter: x ", x.shape(),
                      " is not made of whole rows of ", where.part.length, " elements");
  const Tensor y = tape.stream().empty_like(x.value());
  kernels::jitter(tape.stream(), y, x.value(), where, eps);
  // `where` may be captured: its step is the run's, and no activation.
  return tape.record("jitter", y, {x}, [x = tape.slot(x), where, eps](Backward& b, const Tensor& dy) {
    const Tensor dx = b.stream().empty_like(dy);
    kernels::jitter(b.stream(), dx, dy, where, eps);
    b.add(x, dx);
  });
}

}  // namespace witan::ops
