// The epilogues of gradients of weights: by their dtype, by whether they are added to, and with the sums of blocks.
#pragma once

#include "witan/kernels/cuda/grouped/grouped_block_sums.cuh"
#include "witan/kernels/cuda/grouped/grouped_store.cuh"
#include "witan/kernels/grouped_gemm.h"

namespace witan::kernels::cuda {

// body.template operator()<element of the operands, epilogue>()
template <class Body>
void with_weight_store(const WeightGradient& to, DType operands, const Body& body) {
  const bool accumulate = to.write == Write::accumulate;
  using Bf16 = __nv_bfloat16;
  if (to.dw.dtype() == DType::f32)
    return dispatch_half(operands, [&]<class T>() {
      accumulate ? body.template operator()<T, BulkStore<true>>()
                 : body.template operator()<T, BulkStore<false, 128, BlockSums>>();
    });
  assert(operands == DType::bf16 && to.dw.dtype() == DType::bf16);
  accumulate ? body.template operator()<Bf16, Add<BlockSums>>()
             : body.template operator()<Bf16, Store<Bf16, BlockSums>>();
}

template <class Epilogue>
Epilogue weight_store(const WeightGradient& to) {
  using Sums = decltype(Epilogue::block_sums);
  constexpr bool kSums = std::is_same_v<Sums, BlockSums>;
  assert(kSums || !to.block_sums.defined());
  Epilogue store{ptr<std::remove_pointer_t<decltype(Epilogue::out)>>(to.dw), to.dw.stride(0), to.dw.stride(1)};
  if constexpr (kSums) store.block_sums = block_sums_to(to);
  return store;
}

}  // namespace witan::kernels::cuda
