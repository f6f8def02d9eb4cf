#include "witan/ops/pointwise/elementwise.h"

namespace witan::ops {

void check_dropout(const char* op, const kernels::Dropout& how) {
  require<ShapeError>(how.p >= 0 && how.p < 1, op, ": p of dropout must be at least 0 and below 1, got ", how.p);
  require<ShapeError>(!how.on() || (how.step.defined() && how.step.shape() == Shape{kernels::kStepValues} &&
                                    how.step.dtype() == DType::f64),
                      op, ": dropout needs step, float64 [", kernels::kStepValues, "]");
  const auto& [length, whole, runs] = how.part;
  const bool begins_blocks = length % 4 == 0 && whole % 4 == 0 && runs.first % 4 == 0 && runs.second % 4 == 0 &&
                             (runs.split >= length || runs.split % 4 == 0);
  require<ShapeError>(!how.on() || begins_blocks, op,
                      ": dropout of a part of a tensor needs runs of whole blocks of 4 ", "elements, got ", length,
                      " of ", whole, " from ", runs.first, " and ", runs.second, " on");
}

Var dropout(Tape& tape, const Var& x, const kernels::Dropout& how) {
  check_dropout("dropout", how);
  require<ShapeError>(is_floating(x.dtype()) && x.value().contiguous(),
                      "dropout: x must be floating and contiguous, got ", x.dtype(), " ", x.shape());
  if (!how.on()) return x;
  require<ShapeError>(how.part.length == 0 || x.value().elements() % how.part.length == 0, "dropout: x ", x.shape(),
                      " is not made of whole rows of ", how.part.length, " elements");
  const Tensor y = tape.stream().empty_like(x.value());
  kernels::dropout(tape.stream(), y, x.value(), how);
  // `how` may be captured: its step is the run's, and no activation.
  return tape.record("dropout", y, {x}, [x = tape.slot(x), how](Backward& b, const Tensor& dy) {
    const Tensor dx = b.stream().empty_like(dy);
    kernels::dropout(b.stream(), dx, dy, how);
    b.add(x, dx);
  });
}

Var jitter(Tape& tape, const Var& x, const kernels::Dropout& where, const kernels::Jitter& noise) {
  require<ShapeError>(noise.eps >= 0 && (noise.added || noise.eps < 1),
                      "jitter: eps must be at least 0 and, of noise that multiplies, below 1, got ", noise.eps);
  if (noise.eps == 0) return x;
  require<ShapeError>(is_floating(x.dtype()) && x.value().contiguous(),
                      "jitter: x must be floating and contiguous, got ", x.dtype(), " ", x.shape());
  require<ShapeError>(
      where.step.defined() && where.step.shape() == Shape{kernels::kStepValues} && where.step.dtype() == DType::f64,
      "jitter: noise needs step, float64 [", kernels::kStepValues, "]");
  require<ShapeError>(where.part.length == 0 || x.value().elements() % where.part.length == 0, "jitter: x ", x.shape(),
                      " is not made of whole rows of ", where.part.length, " elements");
  const Tensor y = tape.stream().empty_like(x.value());
  kernels::jitter(tape.stream(), y, x.value(), where, noise);
  // `where` may be captured: its step is the run's, and no activation.
  return tape.record("jitter", y, {x}, [x = tape.slot(x), where, noise](Backward& b, const Tensor& dy) {
    if (noise.added) return b.add(x, dy);
    const Tensor dx = b.stream().empty_like(dy);
    kernels::jitter(b.stream(), dx, dy, where, noise);
    b.add(x, dx);
  });
}

}  // namespace witan::ops
