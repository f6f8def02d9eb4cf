#include "witan/kernels/gemm/gemm.h"

#include "witan/kernels/gemm/cuda/few_rows.h"
#include "witan/kernels/gemm/cuda/gemm.h"
#include "witan/kernels/gemm/cuda/plain_gemm.h"

namespace witan::kernels::cuda {

void gemm(Stream& stream, const Tensor& c, Write write, const Tensor& a, Transpose transpose_a, const Tensor& b,
          Transpose transpose_b) {
  if (c.elements() == 0) return;
  const bool has_terms = a.elements() > 0;
  if (!has_terms && write == Write::accumulate) return;
  if (few_rows_gemm(stream, c, write, a, transpose_a, b, transpose_b, {})) return;
  if (has_terms && gemm_by_cublaslt(stream, c, write, a, transpose_a, b, transpose_b)) return;
  plain_gemm(stream, c, write, a, transpose_a, b, transpose_b);
}

void gemm_with_bias(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a, const Tensor& b,
                    Transpose transpose_b, const Tensor& bias) {
  if (c.elements() == 0) return;
  if (few_rows_gemm(stream, c, Write::overwrite, a, transpose_a, b, transpose_b, bias)) return;
  if (a.elements() > 0 && gemm_with_bias_by_cublaslt(stream, c, a, transpose_a, b, transpose_b, bias)) return;
  cuda::repeat_row(stream, c, bias);
  cuda::gemm(stream, c, Write::accumulate, a, transpose_a, b, transpose_b);
}

}  // namespace witan::kernels::cuda
