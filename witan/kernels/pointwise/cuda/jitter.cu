#include "witan/kernels/pointwise/cuda/philox.cuh"
#include "witan/kernels/pointwise/dropout.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kElements = 4;  // of a thread

// Elements of a thread are neighbours, mostly of one block of words.
template <class T>
__global__ void __launch_bounds__(kThreads)
    jitter_kernel(T* y, const T* x, int64_t elements, DropoutDraw draw, DroppedPart part, double eps) {
  using A = Acc<T>;
  __shared__ DropoutMask shared;
  if (threadIdx.x == 0) shared = draw.mask();
  __syncthreads();
  const DropoutMask words = shared;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kElements;
  uint64_t block = UINT64_MAX;
  uint4 drawn{};
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    if (first + i >= elements) return;
    int64_t e = first + i;
    if (part.length > 0) {
      const int64_t row = e / part.length, at = e - row * part.length;
      e = row * part.whole + (at < part.runs.split ? part.runs.first + at : part.runs.second + (at - part.runs.split));
    }
    if (static_cast<uint64_t>(e) / 4 != block) drawn = words.block(block = static_cast<uint64_t>(e) / 4);
    const int w = static_cast<int>(e % 4);
    const A u = A(w == 0 ? drawn.x : w == 1 ? drawn.y : w == 2 ? drawn.z : drawn.w) * A(0x1p-32);
    y[first + i] = convert<T>(convert<A>(x[first + i]) * (1 + A(eps) * (2 * u - 1)));
  }
}

}  // namespace

void jitter(Stream& stream, const Tensor& y, const Tensor& x, const Dropout& where, double eps) {
  const int64_t n = y.elements(), per_block = kThreads * kElements;
  if (n == 0) return;
  dispatch_device(y.dtype(), [&]<class T>() {
    jitter_kernel<T><<<static_cast<unsigned>((n + per_block - 1) / per_block), kThreads, 0, native(stream)>>>(
        ptr<T>(y), ptr<const T>(x), n, DropoutDraw(where), where.part, eps);
  });
}

}  // namespace witan::kernels::cuda
