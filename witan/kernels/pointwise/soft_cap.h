// Logits that a hyperbolic tangent keeps within a bound (Bello et al., 2016; Gemma 2, 2024). In float32 or wider.
// x, y, dx, dy [..] of one floating dtype, contiguous.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// y = cap tanh(scale x / cap).  y may be x.
void soft_cap_forward(Stream& stream, const Tensor& y, const Tensor& x, double scale, double cap);
WITAN_KERNEL_TWINS(soft_cap_forward)

// dx = scale (1 - (y / cap)^2) dy.  dx may be dy.
void soft_cap_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& y, double scale, double cap);
WITAN_KERNEL_TWINS(soft_cap_backward)

}  // namespace witan::kernels
