// The product without a library: for what cuBLASLt refuses, where it is missing, and as the reference of its tests.
#pragma once

#include "witan/kernels/gemm/gemm.h"

namespace witan::kernels::cuda {

// gemm(), all of it; N and M may be 0, and so may K. An element of c is one chain of multiply-adds in the order of K.
void plain_gemm(Stream& stream, const Tensor& c, Write write, const Tensor& a, Transpose transpose_a, const Tensor& b,
                Transpose transpose_b);

}  // namespace witan::kernels::cuda
