// Biases of experts, over rows grouped by expert (tensor/ragged.h); rows outside the groups are neither read nor
// written. y, dy [capacity, N]   bias [E, M] of y's dtype: of columns [first, first + M) of y, whose others stay
// s, ds [capacity] accumulator dtype; undefined: 1. Sums in float32 or wider.
#pragma once

#include "witan/kernels/common/launch.h"
#include "witan/tensor/ragged.h"

namespace witan::kernels {

// y[i, first + j] += s[i] bias[e,j]  for the rows i of group e
void grouped_bias_forward(Stream& stream, const Tensor& y, const RowGroups& groups, const Tensor& bias, const Tensor& s,
                          int64_t first);
WITAN_KERNEL_TWINS(grouped_bias_forward)

// dbias[e,j] (=|+=) sum_{i in group e} s[i] dy[i, first + j];  dbias [E, M] in the gradient dtype. An empty group's is
// zeros, or stays as it was.
void grouped_bias_backward(Stream& stream, const Tensor& dbias, Write write, const Tensor& dy, const RowGroups& groups,
                           const Tensor& s, int64_t first);
WITAN_KERNEL_TWINS(grouped_bias_backward)

// ds[i] = sum_j dy[i, first + j] bias[e,j]
void grouped_bias_backward_scale(Stream& stream, const Tensor& ds, const Tensor& dy, const RowGroups& groups,
                                 const Tensor& bias, int64_t first);
WITAN_KERNEL_TWINS(grouped_bias_backward_scale)

}  // namespace witan::kernels
