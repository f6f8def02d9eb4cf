// How attention on the tensor cores is launched, for the translation units of its dtypes.
#pragma once

#include "witan/kernels/attention/cuda/attention_launch.cuh"
#include "witan/kernels/attention/cuda/attention_tensor_backward.cuh"
#include "witan/kernels/attention/cuda/attention_tensor_forward.cuh"

namespace witan::kernels::cuda::tensor {

template <class T>
void launch_forward(Stream& stream, const AttentionCall<T>& call) {
  dispatch_tile(call, [&]<int D, bool kDropout>() {
    using F = ForwardTile<D>;
    launch_tiles(stream, forward_kernel<T, D, kDropout>, call, call.heads.groups(), tiles_of(call.heads.rows, F::kRows),
                 F::kThreads, F::kBytes);
  });
}

template <class T>
void launch_backward(Stream& stream, const AttentionCall<T>& call, int64_t groups) {
  dispatch_tile(call, [&]<int D, bool kDropout>() {
    using Q = DqTile<D>;
    launch_tiles(stream, dq_kernel<T, D, kDropout>, call, groups, tiles_of(call.heads.rows, Q::kRows), Q::kThreads,
                 Q::kBytes);
    using K = DkvTile<D>;
    launch_tiles(stream, dkv_kernel<T, D, kDropout>, call, groups, tiles_of(call.heads.capacity, K::kKeys), K::kThreads,
                 K::kTileBytes);
  });
}

}  // namespace witan::kernels::cuda::tensor
