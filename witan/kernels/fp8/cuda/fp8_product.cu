#include "witan/kernels/fp8/cuda/fp8_gemm_hopper.cuh"

namespace witan::kernels::cuda {

void fp8_product(Stream& stream, const Tensor& y, const Fp8Product& product, const RowGroups& groups) {
  const int64_t experts = product.matrices().size(0);
  assert(y.dtype() == DType::bf16);
  require_fp8(stream, experts);
  const int64_t M = groups.begin.defined() ? groups.rows_of(y.size(0)) : y.size(0);
  with_fp8_shape<RowScales>(product.rows.format, M, experts, y.size(1),
                            [&]<class Shape>() { launch_fp8_product<Shape>(stream, y, product, groups); });
}

}  // namespace witan::kernels::cuda
