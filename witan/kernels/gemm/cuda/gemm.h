// The implementations of dense products on a GPU: cuBLASLt, which is loaded at the first product, so that the program
// neither links nor needs it; kernels for few rows; and a plain kernel, for problems that cuBLASLt refuses, for
// machines without it, and as the reference of its tests.
#pragma once

#include "witan/kernels/gemm/gemm.h"
#include "witan/tensor/tensor.h"

namespace witan::kernels::cuda {

// gemm() by cuBLASLt, for M, N, K > 0. Returns false, and does nothing, if the library is missing or has no algorithm
// for the problem. Throws DeviceError for any other error.
//
// Equal shapes give equal bits in every run: among the algorithms that the library offers, only those that split
// sums like its first choice are considered, and for large products the fastest that writes the same bits as the first
// is kept. They are timed in the first call of their kind that overwrites c and is not captured; that call waits for
// the device. Other calls allocate nothing and may be captured. Partial sums of several blocks are added in the
// accumulator's type, so that c is rounded once.
//
// Within RowProducts the algorithm is the first one that keeps sums whole, chosen for a fixed number of rows; if it
// adds in chains, the fastest of those that do, for the actual number. False if none takes the product.
bool gemm_by_cublaslt(Stream& stream, const Tensor& c, Write write, const Tensor& a, Transpose transpose_a,
                      const Tensor& b, Transpose transpose_b);

// gemm_with_bias() by cuBLASLt, as above. Returns false unless the bias is aligned to 16 bytes.
bool gemm_with_bias_by_cublaslt(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a,
                                const Tensor& b, Transpose transpose_b, const Tensor& bias);

// batched_gemm() by cuBLASLt, as above, for a batch > 0. The algorithm is chosen for a batch of fixed size, so that the
// bits of a matrix do not depend on the size of the batch.
bool batched_gemm_by_cublaslt(Stream& stream, const Tensor& d, const BatchedProduct& product);

// Whether gemm_by_cublaslt() or, with a defined bias, gemm_with_bias_by_cublaslt() computes this product within
// RowProducts, and by one of the library's kernels for Hopper, which form each sum as one chain of products of 16 of K.
bool adds_in_chains(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a, const Tensor& b,
                    Transpose transpose_b, const Tensor& bias);

// Products of few rows with a weight (kernels/gemm/product_scopes.h): c [M, N] = a [M, K] b [N, K]^T, plus bias [N] if
// it is defined, rounded once, for bfloat16, float16 and float32. Only shapes decide the launches. Returns false, and
// does nothing, for products that these kernels do not take: more rows, other transposes, rows that are not multiples
// of 16 bytes, Write::accumulate, a thread without FewRows or, within RowProducts, products that do not add in chains.
bool few_rows_gemm(Stream& stream, const Tensor& c, Write write, const Tensor& a, Transpose transpose_a,
                   const Tensor& b, Transpose transpose_b, const Tensor& bias);

// wide_linear() for few rows, of bfloat16 x, as above.
bool few_rows_wide_linear(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& w);

// gemm() by a plain kernel, for any problem; M, N and K may be 0. An element of c is one chain of multiply-adds in the
// order of K.
void plain_gemm(Stream& stream, const Tensor& c, Write write, const Tensor& a, Transpose transpose_a, const Tensor& b,
                Transpose transpose_b);

// A hash of all bits of a matrix [M, N] of any strides, to compare the results of kernels. Waits for the device. Uses
// the stream's scratch.
uint64_t fingerprint(Stream& stream, const Tensor& matrix);

}  // namespace witan::kernels::cuda
