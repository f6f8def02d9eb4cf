#include "witan/kernels/pointwise/row_gate.h"

namespace witan::kernels {

void row_gate_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& gate) {
  WITAN_LAUNCH(stream, row_gate_forward, (Cost{static_cast<double>(x.elements()), bytes_of(y, x, gate)}), y, x, gate);
}

void row_gate_backward(Stream& stream, const Tensor& dx, const Tensor& dgate, const Tensor& dy, const Tensor& x,
                       const Tensor& gate) {
  const Cost cost{3 * static_cast<double>(x.elements()), bytes_of(dx, dgate, dy, x, gate)};
  WITAN_LAUNCH(stream, row_gate_backward, cost, dx, dgate, dy, x, gate);
}

}  // namespace witan::kernels
