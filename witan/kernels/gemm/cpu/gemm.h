// CPU twins of the matrix products. Their callers give them scratch, gemm_workspace() of gemm_blocks.h, because the
// meta device counts it too.
#pragma once

#include "witan/kernels/gemm/gemm.h"

namespace witan::kernels::cpu {

inline constexpr int64_t kSymmetricRows = 128;  // rows of a strip of a symmetric product

void gemm(Stream& stream, const Tensor& c, Write write, const Tensor& a, Transpose transpose_a, const Tensor& b,
          Transpose transpose_b, const Tensor& workspace);
void batched_gemm(Stream& stream, const Tensor& d, const BatchedProduct& product, const Tensor& workspace);

}  // namespace witan::kernels::cpu
