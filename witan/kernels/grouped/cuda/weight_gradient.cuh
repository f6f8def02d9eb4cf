// The epilogues of gradients of weights: by their dtype, by whether they are added to, and with the sums of blocks.
#pragma once

#include "witan/kernels/grouped/cuda/grouped_block_sums.cuh"
#include "witan/kernels/grouped/cuda/grouped_store.cuh"
#include "witan/kernels/grouped/grouped_gemm.h"

namespace witan::kernels::cuda {

template <class Sums>
using StoreFloat = BulkStore<false, 128, Sums>;
template <class Sums>
using StoreBf16 = Store<__nv_bfloat16, Sums>;

// body.template operator()<element of the operands, epilogue>(). A kernel of its own for sums that nobody wants: with a
// test for them in the epilogue, products of gathered rows took 6 % longer.
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

}  // namespace witan::kernels::cuda
