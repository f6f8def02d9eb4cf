// Products of many matrices of one shape in one call, for optimizers that work on whole matrices.
#pragma once

#include "witan/kernels/gemm/gemm.h"

namespace witan::kernels {

// alpha op(a[i]) op(b[i]) + beta c[i] + identity I for each matrix i of the batch.
struct BatchedProduct {
  Tensor a;
  Transpose transpose_a;
  Tensor b;
  Transpose transpose_b;
  double alpha = 1;
  Tensor c = {};  // [n, M, N], other memory than the result; undefined: there is none, and beta is 0
  double beta = 0;
  double identity = 0;  // of square matrices
  // The product is known to be symmetric: a CPU computes blocks on and below the diagonal, and mirrors those below it.
  bool symmetric = false;
};

// What part of a symmetric product [m, m] a CPU computes.
double symmetric_share(int64_t m);

// d[i] = that.  d [n, M, N], op(a) [n, M, K], op(b) [n, K, N], contiguous and of one floating dtype. Sums over K are
// formed in float32 or wider and rounded once; a matrix of d has the same bits whatever matrices came with it.
void batched_gemm(Stream& stream, const Tensor& d, const BatchedProduct& product);
WITAN_CUDA_TWIN(batched_gemm)

}  // namespace witan::kernels
