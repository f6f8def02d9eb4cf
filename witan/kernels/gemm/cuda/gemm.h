// Dense products by cuBLASLt, which is loaded when the first is asked for: the program neither links it nor needs it.
#pragma once

#include "witan/kernels/gemm/gemm.h"

namespace witan::kernels::cuda {

// gemm() by the library, for M, N, K > 0. False, and nothing was done, where the library is missing or knows no
// algorithm for the problem. Throws DeviceError for what else it reports.
//
// The same shapes give the same bits in every run: of the algorithms that the library offers only those count which cut
// sums as its first choice does, and of large products the fastest of them that wrote the very bits of the first is
// kept. They are timed in the first call of their kind that overwrites c and is not captured; it waits for the device.
// Any other call allocates nothing and may be captured. Sums that several blocks share meet in the accumulator's type,
// so that c is rounded once.
bool gemm_by_cublaslt(Stream& stream, const Tensor& c, Write write, const Tensor& a, Transpose transpose_a,
                      const Tensor& b, Transpose transpose_b);

// Within RowProducts the algorithm is the first that keeps sums whole of those for a fixed number of rows, and is not
// timed; of a product that it does not take, false.
//
// The same for gemm_with_bias(), M, N, K > 0; the bias is read in 16-byte units, or not by the library.
bool gemm_with_bias_by_cublaslt(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a,
                                const Tensor& b, Transpose transpose_b, const Tensor& bias);

// The same for batched_gemm(), M, N, K and the batch > 0. The algorithm is chosen for a batch of fixed size, so that
// the bits of a matrix do not depend on how many came with it.
bool batched_gemm_by_cublaslt(Stream& stream, const Tensor& d, const BatchedProduct& product);

}  // namespace witan::kernels::cuda
