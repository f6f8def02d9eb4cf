#include "witan/ops/dropout.h"

namespace witan::ops {

void check_dropout(const char* op, const kernels::Dropout& how) {
  require<ShapeError>(how.p >= 0 && how.p < 1, op, ": p of dropout must be at least 0 and below 1, got ", how.p);
  require<ShapeError>(!how.on() || (how.step.defined() && how.step.shape() == Shape{kernels::kStepValues} &&
                                    how.step.dtype() == DType::f64),
                      op, ": dropout needs step, float64 [", kernels::kStepValues, "]");
}

Var dropout(Tape& tape, const Var& x, const kernels::Dropout& how) {
  check_dropout("dropout", how);
  require<ShapeError>(is_floating(x.dtype()) && x.value().contiguous(),
                      "dropout: x must be floating and contiguous, got ", x.dtype(), " ", x.shape());
  if (!how.on()) return x;
  require<ShapeError>(
      (how.first | how.run | how.distance) % 4 == 0 && (how.run == 0 || x.value().elements() % how.run == 0),
      "dropout: x ", x.shape(), " as runs of ", how.run, " elements, the first at ", how.first, ", each ", how.distance,
      " after the one before: all must be multiples of 4, and the runs whole");
  const Tensor y = tape.stream().empty_like(x.value());
  kernels::dropout(tape.stream(), y, x.value(), how);
  // `how` may be captured: its step is the run's, and no activation.
  return tape.record("dropout", y, {x}, [x = tape.slot(x), how](Backward& b, const Tensor& dy) {
    const Tensor dx = b.stream().empty_like(dy);
    kernels::dropout(b.stream(), dx, dy, how);
    b.add(x, dx);
  });
}

}  // namespace witan::ops
