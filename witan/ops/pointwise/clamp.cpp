#include "witan/ops/pointwise/clamp.h"

#include "witan/kernels/pointwise/elementwise.h"

namespace witan::ops {

Var clamp(Tape& tape, const Var& x, double bound) {
  require<ShapeError>(is_floating(x.dtype()) && x.value().contiguous(),
                      "clamp: x must be floating and contiguous, got ", x.dtype(), " ", x.shape());
  require<ShapeError>(bound > 0, "clamp: the bound must be above 0, got ", bound);
  const Tensor y = tape.stream().empty_like(x.value());
  kernels::clamp_forward(tape.stream(), y, x.value(), bound);
  return tape.record("clamp", y, {x}, [x = tape.save(x), bound](Backward& b, const Tensor& dy) {
    const Tensor in = b.value(x), dx = b.stream().empty_like(in);
    kernels::clamp_backward(b.stream(), dx, dy, in, bound);
    b.add(x, dx);
  });
}

}  // namespace witan::ops
