#include "witan/ops/shape/shape.h"

namespace witan::ops {

Var reshape(Tape& tape, const Var& x, const Shape& shape) {
  return tape.record(
      "reshape", x.value().reshape(shape), {x},
      [x = tape.slot(x), before = x.shape()](Backward& b, const Tensor& dy) { b.add(x, dy.reshape(before)); });
}

}  // namespace witan::ops
