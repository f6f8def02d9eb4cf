// The products of hopper_gram_newton_schulz(), in float16 with sums in float32, of tensors that are declared bfloat16.
#pragma once

#include "witan/tensor/tensor.h"

namespace witan::kernels::cuda {

// d = alpha a b + beta c + identity I: symmetric matrices that commute, all [n, m, m]; c may be undefined.
struct SymmetricScales {
  float alpha = 1, beta = 0, identity = 0;
};
void hopper_symmetric_product(Stream& stream, const Tensor& d, const Tensor& a, const Tensor& b, const Tensor& c,
                              const SymmetricScales& scales);

// r [n, m, m] = x x^T of x [n, m, columns], or x^T x of x [n, rows, m] where there are more rows than columns.
void hopper_gram(Stream& stream, const Tensor& r, const Tensor& x);

// y = scale q x, or scale x q where x has more rows than columns; in float16 or, `last`, in bfloat16.
struct ApplyArgs {
  float scale = 1;
  bool last = false;
};
void hopper_apply(Stream& stream, const Tensor& y, const Tensor& q, const Tensor& x, const ApplyArgs& args);

}  // namespace witan::kernels::cuda
