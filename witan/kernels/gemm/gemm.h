// Matrix products. Matrices are row-major with unit stride inside a row; rows may be farther apart (views by narrow).
// a, b of one floating dtype; c of the same, or float32 where a is bfloat16 (weight gradients). Sums over K are formed
// in float32 or wider (float32 is multiplied as float32), and rounded once. On the CPU their order depends on K alone:
// a row of c has the same bits whatever rows came with it. On CUDA it depends on all shapes and strides.
#pragma once

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

enum class Transpose : bool { no, yes };

// c [M, N] (=|+=) op(a) [M, K] op(b) [K, N];  op(a) = a or a^T, so that `a` is stored as [M, K] or [K, M].
void gemm(Stream& stream, const Tensor& c, Write write, const Tensor& a, Transpose transpose_a, const Tensor& b,
          Transpose transpose_b);
WITAN_CUDA_TWIN(gemm)

// c[m,n] = (op(a) op(b))[m,n] + bias[n], rounded once;  c contiguous, bias [N] of its dtype. On CUDA in one pass over
// c.
void gemm_with_bias(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a, const Tensor& b,
                    Transpose transpose_b, const Tensor& bias);
WITAN_CUDA_TWIN(gemm_with_bias)

// y[t,n] = row[n];  y [T, N], row [N] of one dtype.
void repeat_row(Stream& stream, const Tensor& y, const Tensor& row);
WITAN_KERNEL_TWINS(repeat_row)

// One product of a batch of matrices of one shape, for optimizers that work on whole matrices and for the heads of
// attention: alpha op(a[i]) op(b[i]) + beta c[i] + identity I for each matrix i of the batch.
struct BatchedProduct {
  Tensor a;
  Transpose transpose_a;
  Tensor b;
  Transpose transpose_b;
  double alpha = 1;
  Tensor c = {};  // [n, M, N], not the memory of the result; undefined where beta is 0
  double beta = 0;
  double identity = 0;  // not 0 only for square matrices
  // The product is known to be symmetric: a CPU computes blocks on and below the diagonal, and mirrors those below it.
  bool symmetric = false;
};

// The share of a symmetric product [m, m] that a CPU computes.
double symmetric_share(int64_t m);

// d[i] = the product of matrix i.  d [n, M, N], op(a) [n, M, K], op(b) [n, K, N] of one floating dtype, with unit
// stride inside a row; contiguous too where more than the product is computed: with alpha, beta, identity or symmetric.
// Sums over K are formed in float32 or wider and rounded once; a matrix of d has the same bits whatever matrices came
// with it.
void batched_gemm(Stream& stream, const Tensor& d, const BatchedProduct& product);
WITAN_CUDA_TWIN(batched_gemm)

}  // namespace witan::kernels
