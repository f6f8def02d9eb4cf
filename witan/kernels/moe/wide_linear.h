// Products of activations with a weight that is wider than they are: a router's logits. x [T, D], w [E, D] in the
// accumulator dtype of x, all tensors contiguous. Sums are formed in that dtype from the values of x as they are.
//
// CUDA kernels of its own take bfloat16 x where D and E are multiples of 8: which of them follows from D and E, so that
// a row of y has the same bits whatever rows came with it. Else, and on the CPU, x is cast into a workspace and gemm
// multiplies, each with its own costs.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

// y [T, E] = x w^T, in w's dtype
void wide_linear(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& w);
WITAN_CUDA_TWIN(wide_linear)

// dx [T, D] (=|+=) dy w, in x's dtype, rounded once. The CUDA kernel multiplies the first 16 bits of dy and of w:
// errors of 2^-16 of a term, beside the 2^-9 of the rounding.
void wide_linear_backward_input(Stream& stream, const Tensor& dx, Write write, const Tensor& dy, const Tensor& w);
WITAN_CUDA_TWIN(wide_linear_backward_input)

// dw [E, D] (=|+=) dy^T x, in any floating dtype
void wide_linear_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x);
WITAN_CUDA_TWIN(wide_linear_backward_weight)

}  // namespace witan::kernels
