#include "witan/kernels/cuda/common.cuh"
#include "witan/kernels/elementwise.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <class Y, class X>
__global__ void __launch_bounds__(kThreads) broadcast_kernel(Y* y, const X* x, int64_t elements) {
  const Y value = convert<Y>(*x);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += stride) y[i] = value;
}

}  // namespace

void broadcast(Stream& stream, const Tensor& y, const Tensor& x) {
  if (y.elements() == 0) return;
  const unsigned blocks = blocks_for(stream, (y.elements() + kThreads - 1) / kThreads);
  dispatch_device(y.dtype(), [&]<class Y>() {
    dispatch_device(x.dtype(), [&]<class X>() {
      broadcast_kernel<<<blocks, kThreads, 0, native(stream)>>>(ptr<Y>(y), ptr<X>(x), y.elements());
    });
  });
}

}  // namespace witan::kernels::cuda
