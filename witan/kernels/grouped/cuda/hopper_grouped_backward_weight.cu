#include "witan/kernels/grouped/cuda/grouped_gemm.h"
#include "witan/kernels/grouped/cuda/grouped_shapes.cuh"
#include "witan/kernels/grouped/cuda/weight_gradient.cuh"

namespace witan::kernels::cuda {
namespace {

template <class T, class Epilogue>
void launch(Stream& stream, const WeightGradient& to, const Tensor& dy, const Tensor& x, const RowGroups& groups) {
  const Tensor& dw = to.dw;
  using Both = OperandLayout<Grouped::sum, Major::mn, Major::mn, Columns::adjacent, kElementFor<T>>;
  const auto store = weight_store<Epilogue>(to);
  with_unshared_shape(dw.size(1) * groups.experts(), groups.experts(), dw.size(2), [&]<class Shape>() {
    launch_grouped_gemm<Shape, Both>(stream, dy, x, product_of(groups, dw.size(1), dw.size(2), x.size(0)), store);
  });
}

}  // namespace

void hopper_grouped_backward_weight(Stream& stream, const WeightGradient& to, const Tensor& dy, const Tensor& x,
                                    const RowGroups& groups) {
  with_weight_store(to, x.dtype(), [&]<class T, class Epilogue>() { launch<T, Epilogue>(stream, to, dy, x, groups); });
}

}  // namespace witan::kernels::cuda
