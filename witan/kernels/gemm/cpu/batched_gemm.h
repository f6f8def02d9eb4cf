// The CPU twin of kernels/gemm/gemm.h, with scratch from its caller as in cpu/gemm.h.
#pragma once

#include "witan/kernels/gemm/gemm.h"

namespace witan::kernels::cpu {

inline constexpr int64_t kSymmetricRows = 128;  // of a strip of a symmetric product

void batched_gemm(Stream& stream, const Tensor& d, const BatchedProduct& product, const Tensor& workspace);

}  // namespace witan::kernels::cpu
