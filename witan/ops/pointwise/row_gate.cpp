#include "witan/ops/pointwise/row_gate.h"

#include "witan/kernels/pointwise/elementwise.h"

namespace witan::ops {

Var row_gate(Tape& tape, const Var& x, const Var& gate) {
  require<ShapeError>(x.shape().dims() >= 1 && is_floating(x.dtype()) && x.value().contiguous(),
                      "row_gate: x must be [.., D], floating and contiguous, got ", x.dtype(), " ", x.shape());
  require<ShapeError>(gate.shape() == x.shape().with(x.shape().dims() - 1, 1) && gate.dtype() == x.dtype(),
                      "row_gate: gate must be ", x.dtype(), " ", x.shape().with(x.shape().dims() - 1, 1), ", got ",
                      gate.dtype(), " ", gate.shape());
  const Tensor y = tape.stream().empty_like(x.value());
  kernels::row_gate_forward(tape.stream(), y, x.value(), gate.value());
  return tape.record("row_gate", y, {x, gate},
                     [x = tape.save(x), gate = tape.save(gate)](Backward& b, const Tensor& dy) {
                       const Tensor in = b.value(x), of = b.value(gate);
                       const Tensor dx = b.stream().empty_like(in), dgate = b.stream().empty_like(of);
                       kernels::row_gate_backward(b.stream(), dx, dgate, dy, in, of);
                       b.add(x, dx);
                       b.add(gate, dgate);
                     });
}

}  // namespace witan::ops
