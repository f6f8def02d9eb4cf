#include "witan/ops/pointwise/soft_cap.h"

#include <utility>

#include "witan/kernels/pointwise/elementwise.h"

namespace witan::ops {

Var soft_cap(Tape& tape, Var x, double scale, double cap) {
  require<ShapeError>(is_floating(x.dtype()) && x.value().contiguous(),
                      "soft_cap: x must be floating and contiguous, got ", x.dtype(), " ", x.shape());
  require<ShapeError>(cap > 0, "soft_cap: the bound must be above 0, got ", cap);
  const Tensor y = x.unique() ? x.value() : tape.stream().empty_like(x.value());
  kernels::soft_cap_forward(tape.stream(), y, x.value(), scale, cap);
  return tape.record("soft_cap", y, {x},
                     [slot = tape.slot(x), y = tape.save(y), scale, cap](Backward& b, const Tensor& dy) {
                       const Tensor dx = dy.unique() ? dy : b.stream().empty_like(dy);
                       kernels::soft_cap_backward(b.stream(), dx, dy, b.value(y), scale, cap);
                       b.add(slot, dx);
                     });
}

}  // namespace witan::ops
