#include "witan/ops/shape/part.h"

#include "witan/kernels/common/blocks.h"

namespace witan::ops {

Var take_part(Tape& tape, const Var& x, int64_t part) {
  require<ShapeError>(x.shape().dims() == 3 && part >= 0 && part < x.size(1), "take_part: part ", part,
                      " of x, which must be [A, N > ", part, ", I], got ", x.shape());
  Stream& s = tape.stream();
  const Tensor y = s.empty({x.size(0), x.size(2)}, x.dtype());
  kernels::take_part(s, y, x.value(), part);
  return tape.record("take_part", y, {x}, [x = tape.slot(x), shape = x.shape(), part](Backward& b, const Tensor& dy) {
    const Tensor dx = b.stream().empty(shape, dy.dtype());
    kernels::place_part(b.stream(), dx, dy, part);
    b.add(x, dx);
  });
}

}  // namespace witan::ops
