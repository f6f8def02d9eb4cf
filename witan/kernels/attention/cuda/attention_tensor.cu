#include "witan/kernels/attention/cuda/attention_hopper_forward.cuh"
#include "witan/kernels/attention/cuda/attention_tensor_backward.cuh"
#include "witan/kernels/attention/cuda/attention_tensor_forward.cuh"

namespace witan::kernels::cuda {

void launch_forward(Stream& stream, const AttentionCall<__nv_bfloat16>& call) {
  if (!tensor::launch_hopper_forward(stream, call)) tensor::launch_forward(stream, call);
}

void launch_backward(Stream& stream, const AttentionCall<__nv_bfloat16>& call, int64_t groups) {
  tensor::launch_backward(stream, call, groups);
}

}  // namespace witan::kernels::cuda
