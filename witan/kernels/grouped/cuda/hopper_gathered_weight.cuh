// The gradient of a weight where the rows of one operand are gathered; a file for either, since each takes long to
// compile.
#pragma once

#include "witan/kernels/grouped/cuda/grouped_gemm.h"
#include "witan/kernels/grouped/cuda/grouped_shapes.cuh"
#include "witan/kernels/grouped/cuda/weight_gradient.cuh"

namespace witan::kernels::cuda {

template <class T, Gathered kGathered, class Epilogue>
void launch_gathered_weight(Stream& stream, const WeightGradient& to, const Tensor& dy, const Tensor& x,
                            const RowGroups& groups, const RowIndex& rows) {
  const Tensor& dw = to.dw;
  using Both = OperandLayout<Grouped::sum, Major::mn, Major::mn, Columns::adjacent, kElementFor<T>, kGathered>;
  const auto store = weight_store<Epilogue>(to);
  const auto launch = [&]<class Shape>() {
    const GroupedProduct product =
        product_of(groups, dw.size(1), dw.size(2), rows.capacity(kGathered == Gathered::a ? dy : x));
    launch_grouped_gemm<Shape, Both>(stream, dy, x, product, store, rows);
  };
  // Where rows of dy are gathered, pairs gained nothing in whole layers (docs/performance-log.md, step 38).
  if constexpr (kGathered == Gathered::a)
    launch.template operator()<WideTile>();
  else if (dw.size(2) < TallPair::kClusterN)
    launch.template operator()<TallTile>();
  else
    launch.template operator()<TallPair>();
}

template <Gathered kGathered>
void gathered_weight(Stream& stream, const WeightGradient& to, const Tensor& dy, const Tensor& x,
                     const RowGroups& groups, const RowIndex& rows) {
  with_weight_store(to, x.dtype(), [&]<class T, class Epilogue>() {
    launch_gathered_weight<T, kGathered, Epilogue>(stream, to, dy, x, groups, rows);
  });
}

}  // namespace witan::kernels::cuda
