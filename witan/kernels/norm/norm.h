// RMSNorm (Zhang & Sennrich, 2019) and LayerNorm (Ba et al., 2016) over the last dim.
// x, y, dx, dy [T, D] floating   w, b [D] of x's dtype   r, mean [T] accumulator dtype, saved for the backward.
// Sums in float32 or wider.
#pragma once

#include <utility>

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// The weight of a norm, which multiplies a normalised row. If it is centred at zero, as Megatron-LM's
// --apply-layernorm-1p has it, `values` + 1 does; the sum is formed in the accumulator dtype. A tensor converts to the
// plain weight that it is.
struct NormWeight {
  NormWeight() = default;
  NormWeight(Tensor w, bool centered = false) : values(std::move(w)), zero_centered(centered) {}

  template <class A>
  A added() const {
    return zero_centered ? A(1) : A(0);
  }

  Tensor values;  // [D]
  bool zero_centered = false;
};

// y[t,d] = x[t,d] * r[t] * w[d],  r[t] = 1 / sqrt(mean_d x[t,d]^2 + eps)
void rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& r, const Tensor& x, const NormWeight& w,
                     double eps);
WITAN_KERNEL_TWINS(rmsnorm_forward)

// dx[t,d] = r[t] * (w[d] dy[t,d] - x[t,d] r[t]^2 mean_d(w dy x))
void rmsnorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x, const NormWeight& w,
                            const Tensor& r);
WITAN_KERNEL_TWINS(rmsnorm_backward_input)

// The residual stream and its norm:  sum = a + b, rounded to the dtype;  y, r = rmsnorm_forward(sum).  sum may be a or
// b
void add_rmsnorm_forward(Stream& stream, const Tensor& sum, const Tensor& y, const Tensor& r, const Tensor& a,
                         const Tensor& b, const NormWeight& w, double eps);
WITAN_KERNEL_TWINS(add_rmsnorm_forward)

// The gradient of a and of b:  dx = dsum + rmsnorm_backward_input(dy).  dsum undefined: none; dx may be dsum
void add_rmsnorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dsum, const Tensor& dy,
                                const Tensor& sum, const NormWeight& w, const Tensor& r);
WITAN_KERNEL_TWINS(add_rmsnorm_backward_input)

// dw[d] (=|+=) sum_t dy[t,d] x[t,d] r[t];  dw [D] in the gradient dtype
void rmsnorm_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                             const Tensor& r);
WITAN_KERNEL_TWINS(rmsnorm_backward_weight)

// Both at once:  dx = [dsum +] rmsnorm_backward_input(dy),  dw (=|+=) rmsnorm_backward_weight(dy).  dsum and dx as in
// add_rmsnorm_backward_input
void rmsnorm_backward(Stream& stream, const Tensor& dx, const Tensor& dw, Write write, const Tensor& dsum,
                      const Tensor& dy, const Tensor& x, const NormWeight& w, const Tensor& r);
WITAN_KERNEL_TWINS(rmsnorm_backward)

// y[t,d] = (x[t,d] - mean[t]) * r[t] * w[d] + b[d],  r[t] = 1 / sqrt(var_d x[t] + eps).  b may be undefined: no bias.
void layernorm_forward(Stream& stream, const Tensor& y, const Tensor& mean, const Tensor& r, const Tensor& x,
                       const NormWeight& w, const Tensor& b, double eps);
WITAN_KERNEL_TWINS(layernorm_forward)

// sum = a + b, rounded to the dtype;  y, mean, r = layernorm_forward(sum).  sum may be a or b
void add_layernorm_forward(Stream& stream, const Tensor& sum, const Tensor& y, const Tensor& mean, const Tensor& r,
                           const Tensor& a, const Tensor& b, const NormWeight& w, const Tensor& bias, double eps);
WITAN_KERNEL_TWINS(add_layernorm_forward)

// g = w dy, n = (x - mean) r:  dx = [dsum +] r (g - mean_d g - n mean_d(g n));  dw and db, where they are defined, as
// layernorm_backward_weight and bias_backward make them. dsum undefined: none; dx may be dsum
struct NormGradients {
  Tensor dw, db;  // [D] in the gradient dtype
  Write write_dw = Write::overwrite, write_db = Write::overwrite;
};
void layernorm_backward(Stream& stream, const Tensor& dx, const NormGradients& to, const Tensor& dsum, const Tensor& dy,
                        const Tensor& x, const NormWeight& w, const Tensor& mean, const Tensor& r);
WITAN_KERNEL_TWINS(layernorm_backward)

// dw[d] (=|+=) sum_t dy n
void layernorm_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                               const Tensor& mean, const Tensor& r);
WITAN_KERNEL_TWINS(layernorm_backward_weight)

// db[d] (=|+=) sum_t dy[t,d];  the gradient of any bias that is added to rows
void bias_backward(Stream& stream, const Tensor& db, Write write, const Tensor& dy);
WITAN_KERNEL_TWINS(bias_backward)

// RMSNorm of rows whose channels are divided among ranks, in two steps: the ranks add up their sums between them
// (ops::sharded_rmsnorm). x, y, dx, dy [T, D], w [D] this rank's channels, of one floating dtype   sums, r [T]
// accumulator dtype   `width`: channels of all ranks. Sums in float32 or wider.

// sums[t] = sum_d x[t,d]^2
void sharded_rmsnorm_squares(Stream& stream, const Tensor& sums, const Tensor& x);
WITAN_KERNEL_TWINS(sharded_rmsnorm_squares)

// y[t,d] = x[t,d] r[t] w[d],  r[t] = 1 / sqrt(sums[t] / width + eps)
void sharded_rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& r, const Tensor& x, const NormWeight& w,
                             const Tensor& sums, int64_t width, double eps);
WITAN_KERNEL_TWINS(sharded_rmsnorm_forward)

// sums[t] = sum_d w[d] dy[t,d] x[t,d]
void sharded_rmsnorm_products(Stream& stream, const Tensor& sums, const Tensor& dy, const Tensor& x,
                              const NormWeight& w);
WITAN_KERNEL_TWINS(sharded_rmsnorm_products)

// dx[t,d] = r[t] (w[d] dy[t,d] - x[t,d] r[t]^2 sums[t] / width)
void sharded_rmsnorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x,
                                    const NormWeight& w, const Tensor& r, const Tensor& sums, int64_t width);
WITAN_KERNEL_TWINS(sharded_rmsnorm_backward_input)

}  // namespace witan::kernels
