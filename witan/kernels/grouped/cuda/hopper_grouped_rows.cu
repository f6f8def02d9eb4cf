#include "witan/kernels/grouped/cuda/grouped_gemm.h"
#include "witan/kernels/grouped/cuda/grouped_shapes.cuh"
#include "witan/kernels/grouped/cuda/grouped_store.cuh"

namespace witan::kernels::cuda {

void hopper_grouped_forward(Stream& stream, const Tensor& y, const Tensor& x, const RowGroups& groups,
                            const Tensor& w) {
  dispatch_half(y.dtype(), [&]<class T>() {
    using Both = OperandLayout<Grouped::m, Major::k, Major::k, Columns::adjacent, kElementFor<T>>;
    with_m_shape(groups.rows_of(y.size(0)), groups.experts(), y.size(1), [&]<class Shape>() {
      launch_grouped_gemm<Shape, Both>(stream, x, w, product_of(groups, y.size(0), y.size(1), x.size(1)),
                                       Store<T>{ptr<T>(y), 0, y.stride(0)});
    });
  });
}

}  // namespace witan::kernels::cuda
