// Products of few rows with a weight (kernels/gemm/product_scopes.h). Their launches follow from shapes alone.
#pragma once

#include "witan/kernels/gemm/gemm.h"

namespace witan::kernels::cuda {

// c [M, N] = a [M, K] b [N, K]^T (+ bias [N], where it is defined), rounded once, for bfloat16, float16 and float32.
// False, and nothing was done, for what these kernels do not take: more rows, other transposes, rows that are not whole
// pieces of 16 bytes, sums that are added, or a thread that did not ask (FewRows).
bool few_rows_gemm(Stream& stream, const Tensor& c, Write write, const Tensor& a, Transpose transpose_a,
                   const Tensor& b, Transpose transpose_b, const Tensor& bias);

// The same for wide_linear(), bfloat16 x.
bool few_rows_wide_linear(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& w);

}  // namespace witan::kernels::cuda
