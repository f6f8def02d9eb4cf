#include "witan/kernels/cuda/fp8/fp8_gemm_hopper.cuh"
#include "witan/kernels/cuda/grouped/grouped_store.cuh"

namespace witan::kernels::cuda {

void fp8_product(Stream& stream, const Tensor& y, const Fp8Product& product, const RowGroups& groups) {
  const Tensor &x = product.rows.values, &w = product.matrices(), &scales = product.weights.scales;
  assert(y.dtype() == DType::bf16);
  require_fp8(stream, w.size(0));
  using Bf16 = __nv_bfloat16;
  using Both = OperandLayout<Grouped::lines, Major::steps, Major::steps>;
  const bool grouped = groups.begin.defined();
  const int across = static_cast<int>(scales.size(2)), of_expert = static_cast<int>(scales.size(1)) * across;
  const RowScales factors{ptr<float>(product.rows.scales), static_cast<int>(x.size(0)), ptr<float>(scales), of_expert,
                          product.turned ? 1 : across,     product.turned ? across : 1};
  const GroupedProduct of{grouped ? groups.begin.data<int64_t>() : nullptr,
                          grouped ? groups.count.data<int64_t>() : nullptr,
                          static_cast<int>(w.size(0)),
                          static_cast<int>(y.size(0)),
                          static_cast<int>(y.size(1)),
                          static_cast<int>(x.size(1) / 2)};
  with_fp8_shape(grouped ? groups.rows_of(y.size(0)) : y.size(0), w.size(0), [&]<class Shape>() {
    launch_fp8_gemm<Shape, Both>(stream, x, w, of, factors, Store<Bf16>{ptr<Bf16>(y), 0, y.stride(0)});
  });
}

}  // namespace witan::kernels::cuda
