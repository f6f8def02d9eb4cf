// The gradient of a weight where the rows of one operand are gathered; a file for either, since each takes long to
// compile.
#pragma once

#include "witan/kernels/cuda/grouped/grouped_shapes.cuh"
#include "witan/kernels/cuda/grouped/grouped_store.cuh"
#include "witan/kernels/cuda/grouped/hopper_grouped_gemm.h"

namespace witan::kernels::cuda {

template <class T, Gathered kGathered, class Epilogue>
void launch_gathered_weight(Stream& stream, const Tensor& dw, const Tensor& dy, const Tensor& x,
                            const RowGroups& groups, const RowIndex& rows) {
  using Both = OperandLayout<Grouped::sum, Major::lines, Major::lines, Columns::adjacent, kElementFor<T>, kGathered>;
  const Epilogue store{ptr<std::remove_pointer_t<decltype(Epilogue::out)>>(dw), dw.stride(0), dw.stride(1)};
  const auto launch = [&]<class Shape>() {
    const GroupedProduct product =
        product_of(groups, dw.size(1), dw.size(2), rows.capacity(kGathered == Gathered::a ? dy : x));
    launch_grouped_gemm<Shape, Both>(stream, dy, x, product, store, rows);
  };
  // Where rows of dy are gathered, pairs gained nothing in whole layers (docs/performance.md, step 38 of the log).
  if constexpr (kGathered == Gathered::a)
    launch.template operator()<WideTile>();
  else if (dw.size(2) < TallPair::kSpanColumns)
    launch.template operator()<TallTile>();
  else
    launch.template operator()<TallPair>();
}

// By dtypes and by what becomes of dw.
template <Gathered kGathered>
void gathered_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                     const RowGroups& groups, const RowIndex& rows) {
  const auto with = [&]<class T, class Epilogue>() {
    launch_gathered_weight<T, kGathered, Epilogue>(stream, dw, dy, x, groups, rows);
  };
  const bool accumulate = write == Write::accumulate;
  using Bf16 = __nv_bfloat16;
  if (dw.dtype() == DType::f32)
    return dispatch_half(x.dtype(), [&]<class T>() {
      accumulate ? with.template operator()<T, BulkStore<true>>() : with.template operator()<T, BulkStore<false>>();
    });
  assert(x.dtype() == DType::bf16 && dw.dtype() == DType::bf16);
  accumulate ? with.template operator()<Bf16, Add>() : with.template operator()<Bf16, Store<Bf16>>();
}

}  // namespace witan::kernels::cuda
