#include "witan/kernels/cuda/grouped/grouped_shapes.cuh"
#include "witan/kernels/cuda/grouped/grouped_store.cuh"
#include "witan/kernels/cuda/grouped/hopper_grouped_gemm.h"

namespace witan::kernels::cuda {
namespace {

template <class T, class Epilogue>
void launch(Stream& stream, const Tensor& dw, const Tensor& dy, const Tensor& x, const RowGroups& groups) {
  using Both = OperandLayout<Grouped::sum, Major::lines, Major::lines, Columns::adjacent, kElementFor<T>>;
  const Epilogue store{ptr<std::remove_pointer_t<decltype(Epilogue::out)>>(dw), dw.stride(0), dw.stride(1)};
  with_unshared_shape(dw.size(1) * groups.experts(), groups.experts(), dw.size(2), [&]<class Shape>() {
    launch_grouped_gemm<Shape, Both>(stream, dy, x, product_of(groups, dw.size(1), dw.size(2), x.size(0)), store);
  });
}

}  // namespace

void hopper_grouped_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                                    const RowGroups& groups) {
  const bool accumulate = write == Write::accumulate;
  using Bf16 = __nv_bfloat16;
  if (dw.dtype() == DType::f32)
    return dispatch_half(x.dtype(), [&]<class T>() {
      accumulate ? launch<T, BulkStore<true>>(stream, dw, dy, x, groups)
                 : launch<T, BulkStore<false>>(stream, dw, dy, x, groups);
    });
  assert(x.dtype() == DType::bf16 && dw.dtype() == DType::bf16);
  accumulate ? launch<Bf16, Add>(stream, dw, dy, x, groups) : launch<Bf16, Store<Bf16>>(stream, dw, dy, x, groups);
}

}  // namespace witan::kernels::cuda
