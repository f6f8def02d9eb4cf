// A gate per row: y = sigmoid(gate) x. In float32 or wider.
// x, y, dx, dy [T, D], gate, dgate [T] of one floating dtype, contiguous.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// y[t,d] = sigmoid(gate[t]) x[t,d]
void row_gate_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& gate);
WITAN_KERNEL_TWINS(row_gate_forward)

// With p = sigmoid(gate[t]):  dx[t,d] = p dy[t,d]   dgate[t] = p (1 - p) sum_d dy[t,d] x[t,d]
void row_gate_backward(Stream& stream, const Tensor& dx, const Tensor& dgate, const Tensor& dy, const Tensor& x,
                       const Tensor& gate);
WITAN_KERNEL_TWINS(row_gate_backward)

}  // namespace witan::kernels
