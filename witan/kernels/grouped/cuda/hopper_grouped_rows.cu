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

void hopper_gathered_forward(Stream& stream, const Tensor& y, const Tensor& x, const RowGroups& groups, const Tensor& w,
                             const RowIndex& x_rows) {
  dispatch_half(y.dtype(), [&]<class T>() {
    using Both = OperandLayout<Grouped::m, Major::k, Major::k, Columns::adjacent, kElementFor<T>, Gathered::a>;
    with_m_shape(groups.rows_of(y.size(0)), groups.experts(), y.size(1), [&]<class Shape>() {
      launch_grouped_gemm<Shape, Both>(stream, x, w, product_of(groups, y.size(0), y.size(1), x.size(1)),
                                       Store<T>{ptr<T>(y), 0, y.stride(0)}, x_rows);
    });
  });
}

void hopper_grouped_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const RowGroups& groups,
                                   const Tensor& w) {
  dispatch_half(dx.dtype(), [&]<class T>() {
    using Both = OperandLayout<Grouped::m, Major::k, Major::mn, Columns::adjacent, kElementFor<T>>;
    with_m_shape(groups.rows_of(dx.size(0)), groups.experts(), dx.size(1), [&]<class Shape>() {
      launch_grouped_gemm<Shape, Both>(stream, dy, w, product_of(groups, dx.size(0), dx.size(1), dy.size(1)),
                                       Store<T>{ptr<T>(dx), 0, dx.stride(0)});
    });
  });
}

void hopper_gathered_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const RowGroups& groups,
                                    const Tensor& w, const RowIndex& dy_rows) {
  dispatch_half(dx.dtype(), [&]<class T>() {
    using Both = OperandLayout<Grouped::m, Major::k, Major::mn, Columns::adjacent, kElementFor<T>, Gathered::a>;
    with_m_shape(groups.rows_of(dx.size(0)), groups.experts(), dx.size(1), [&]<class Shape>() {
      launch_grouped_gemm<Shape, Both>(stream, dy, w, product_of(groups, dx.size(0), dx.size(1), dy.size(1)),
                                       Store<T>{ptr<T>(dx), 0, dx.stride(0)}, dy_rows);
    });
  });
}

}  // namespace witan::kernels::cuda
