#include "witan/kernels/cuda/attention/attention_launch.cuh"
#include "witan/kernels/cuda/attention/attention_tensor_backward.cuh"
#include "witan/kernels/cuda/attention/attention_tensor_forward.cuh"

namespace witan::kernels::cuda {

void launch_forward(Stream& stream, const AttentionCall<__nv_bfloat16>& call) {
  dispatch_tile(call, [&]<int D, bool kDropout>() {
    using F = tensor::ForwardTile<D>;
    launch_tiles(stream, tensor::forward_kernel<D, kDropout>, call, call.heads.groups(),
                 tiles_of(call.heads.rows, F::kRows), F::kThreads, F::kBytes);
  });
}

void launch_backward(Stream& stream, const AttentionCall<__nv_bfloat16>& call, int64_t groups) {
  dispatch_tile(call, [&]<int D, bool kDropout>() {
    using Q = tensor::DqTile<D>;
    launch_tiles(stream, tensor::dq_kernel<D, kDropout>, call, groups, tiles_of(call.heads.rows, Q::kRows), Q::kThreads,
                 Q::kBytes);
    using K = tensor::DkvTile<D>;
    launch_tiles(stream, tensor::dkv_kernel<D, kDropout>, call, groups, tiles_of(call.heads.capacity, K::kKeys),
                 K::kThreads, K::kTileBytes);
  });
}

}  // namespace witan::kernels::cuda
