// A sum of two tensors, each times a learned factor. In float32 or wider.
// y, a, b, dy, dx [..] of one floating dtype, contiguous   wa, wb, w [1] of it; undefined: 1
#pragma once

#include "witan/kernels/pointwise/elementwise.h"

namespace witan::kernels {

// y = wa a + wb b;  b undefined: y = wa a.  y may be a or b.
void scaled_sum(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& wa, const Tensor& b, const Tensor& wb);
WITAN_KERNEL_TWINS(scaled_sum)

// Of one of the terms, w x:  dx = w dy   dw (=|+=) sum dy x;  dw [1] in the gradient dtype.  dx undefined: not wanted.
// Blocks of kSumBlock elements are summed into `partials`, a workspace of [number of blocks] float64, and those in
// order.
void scaled_sum_backward(Stream& stream, const Tensor& dx, const Tensor& dw, Write write, const Tensor& partials,
                         const Tensor& dy, const Tensor& x, const Tensor& w);
WITAN_KERNEL_TWINS(scaled_sum_backward)

}  // namespace witan::kernels
