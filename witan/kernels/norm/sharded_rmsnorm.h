// RMSNorm of rows whose channels several ranks hold, in the two steps between which the ranks add up their sums
// (ops::sharded_rmsnorm). x, y, dx, dy [T, D], w [D] this rank's channels, of one floating dtype   sums, r [T]
// accumulator dtype   `width`: channels of all ranks. Sums in float32 or wider.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// sums[t] = sum_d x[t,d]^2
void sharded_rmsnorm_squares(Stream& stream, const Tensor& sums, const Tensor& x);
WITAN_KERNEL_TWINS(sharded_rmsnorm_squares)

// y[t,d] = x[t,d] r[t] w[d],  r[t] = 1 / sqrt(sums[t] / width + eps)
void sharded_rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& r, const Tensor& x, const Tensor& w,
                             const Tensor& sums, int64_t width, double eps);
WITAN_KERNEL_TWINS(sharded_rmsnorm_forward)

// sums[t] = sum_d w[d] dy[t,d] x[t,d]
void sharded_rmsnorm_products(Stream& stream, const Tensor& sums, const Tensor& dy, const Tensor& x, const Tensor& w);
WITAN_KERNEL_TWINS(sharded_rmsnorm_products)

// dx[t,d] = r[t] (w[d] dy[t,d] - x[t,d] r[t]^2 sums[t] / width)
void sharded_rmsnorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x,
                                    const Tensor& w, const Tensor& r, const Tensor& sums, int64_t width);
WITAN_KERNEL_TWINS(sharded_rmsnorm_backward_input)

}  // namespace witan::kernels
