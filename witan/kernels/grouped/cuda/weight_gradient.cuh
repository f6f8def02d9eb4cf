// The gradients of experts' weights on Hopper: their epilogues, by dtype, Write and block sums, and the launches with
// gathered rows.
#pragma once

#include "witan/kernels/grouped/cuda/grouped_block_sums.cuh"
#include "witan/kernels/grouped/cuda/grouped_gemm.h"
#include "witan/kernels/grouped/cuda/grouped_shapes.cuh"
#include "witan/kernels/grouped/cuda/grouped_store.cuh"
#include "witan/kernels/grouped/grouped_gemm.h"

namespace witan::kernels::cuda {

template <class Sums>
using StoreFloat = BulkStore<false, 128, Sums>;
template <class Sums>
using StoreBf16 = Store<__nv_bfloat16, Sums>;

// Calls body.template operator()<element of the operands, epilogue>(). There is a separate kernel without block sums:
// with a run-time test in the epilogue, products of gathered rows took 6 % longer.
template <class Body>
void with_weight_store(const WeightGradient& to, DType operands, const Body& body) {
  const auto with = [&]<class T, template <class> class Epilogue>() {
    to.block_sums.defined() ? body.template operator()<T, Epilogue<BlockSums>>()
                            : body.template operator()<T, Epilogue<NoSums>>();
  };
  const bool accumulate = to.write == Write::accumulate;
  if (to.dw.dtype() == DType::f32)
    return dispatch_half(operands, [&]<class T>() {
      accumulate ? body.template operator()<T, BulkStore<true>>() : with.template operator()<T, StoreFloat>();
    });
  assert(operands == DType::bf16 && to.dw.dtype() == DType::bf16);
  using Bf16 = __nv_bfloat16;
  accumulate ? with.template operator()<Bf16, Add>() : with.template operator()<Bf16, StoreBf16>();
}

template <class Epilogue>
Epilogue weight_store(const WeightGradient& to) {
  constexpr bool kSums = decltype(Epilogue::block_sums)::kWanted;
  assert(kSums == to.block_sums.defined());
  Epilogue store{ptr<std::remove_pointer_t<decltype(Epilogue::out)>>(to.dw), to.dw.stride(0), to.dw.stride(1)};
  if constexpr (kSums) store.block_sums = block_sums_to(to);
  return store;
}

// Launches the gradient of a weight with one operand's rows gathered. Each operand has a source file of its own that
// instantiates it, since it takes long to compile.
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
  // With gathered rows of dy, pairs of blocks made whole layers no faster (docs/performance-log.md, step 38).
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
