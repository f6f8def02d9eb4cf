// Values held between two bounds, element by element on contiguous tensors of equal shape [..] and one floating dtype.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// y = min(max(x, -bound), bound);  bound above 0, y may be x
void clamp_forward(Stream& stream, const Tensor& y, const Tensor& x, double bound);
WITAN_KERNEL_TWINS(clamp_forward)

// dx = dy where -bound <= x <= bound, and 0 elsewhere;  dx may be dy
void clamp_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x, double bound);
WITAN_KERNEL_TWINS(clamp_backward)

}  // namespace witan::kernels
