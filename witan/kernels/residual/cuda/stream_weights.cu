// A thread makes the weights of one token. Its numbers lie in shared memory, those of a block's threads side by side,
// so that any number of streams and iterations takes no local memory and no bank conflicts.
#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/residual/rules.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 32, kSumThreads = 1024;

struct WeightMath {
  __device__ static float exp(float x) { return expf(x); }
  __device__ static double exp(double x) { return ::exp(x); }
};

template <class A>
struct OfThread {
  A* first;
  __device__ __forceinline__ A& operator[](int i) const { return first[i * kThreads]; }
};

template <class A>
struct Weights {
  const A *logits, *base, *scale;
  int64_t tokens;
  int n, C, iterations;
  A eps;

  Weights(const Tensor& logits_, const Tensor& base_, const Tensor& scale_, const StreamMixing& mixing)
      : logits(ptr<const A>(logits_)),
        base(ptr<const A>(base_)),
        scale(ptr<const A>(scale_)),
        tokens(logits_.shape().as_rows().first),
        n(static_cast<int>(mixing.streams)),
        C(static_cast<int>(logits_.shape().last())),
        iterations(static_cast<int>(mixing.iterations)),
        eps(static_cast<A>(mixing.eps)) {}

  __device__ rules::StreamLogits<A> of(int64_t t) const { return {logits + t * C, base, scale, n}; }
  __device__ rules::Sinkhorn<A, OfThread<A>> matrix(char* shared) const {
    return {{reinterpret_cast<A*>(shared) + threadIdx.x}, n, iterations, eps};
  }
};

template <class A>
__global__ void __launch_bounds__(kThreads) weights_kernel(A* pre, A* mix, Weights<A> in) {
  extern __shared__ __align__(16) char shared[];
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t >= in.tokens) return;
  rules::stream_weights<WeightMath>(pre + t * in.n, mix ? mix + t * (in.C - in.n) : nullptr, in.of(t),
                                    in.matrix(shared));
}

template <class A>
__global__ void __launch_bounds__(kThreads)
    weights_backward_kernel(A* dz, A* dlogits, const A* dpre, const A* dmix, Weights<A> in) {
  extern __shared__ __align__(16) char shared[];
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t >= in.tokens) return;
  rules::stream_weights_backward<WeightMath>(dz + t * in.C, dlogits + t * in.C, dpre ? dpre + t * in.n : nullptr,
                                             dmix ? dmix + t * (in.C - in.n) : nullptr, in.C > in.n, in.of(t),
                                             in.matrix(shared));
}

template <class A, class Kernel, class... Arguments>
void launch(Stream& stream, Kernel* kernel, const Weights<A>& in, const Arguments&... arguments) {
  if (in.tokens == 0) return;
  const auto bytes = static_cast<int>(rules::sinkhorn_numbers(in.n, in.iterations) * kThreads * sizeof(A));
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  kernel<<<static_cast<unsigned>((in.tokens + kThreads - 1) / kThreads), kThreads, bytes, native(stream)>>>(
      arguments..., in);
}

// One block. Thread c, c + threads … of the elements in order: the order of summation depends on shapes alone.
template <class A, class G>
__global__ void __launch_bounds__(kSumThreads)
    scale_kernel(G* dscale, bool adds, const A* dz, const A* logits, int64_t elements, int C, int n, int groups) {
  __shared__ A shared[kSumThreads / 32];
  A sums[3] = {};
  for (int64_t i = threadIdx.x; i < elements; i += kSumThreads) {
    const int c = static_cast<int>(i % C), group = c < n ? 0 : c < 2 * n ? 1 : 2;
    const A product = dz[i] * logits[i];
#pragma unroll
    for (int g = 0; g < 3; ++g) sums[g] += g == group ? product : A(0);
  }
#pragma unroll
  for (int g = 0; g < 3; ++g) {
    const A sum = block_sum(sums[g], shared);
    if (threadIdx.x == 0 && g < groups) dscale[g] = convert<G>((adds ? convert<A>(dscale[g]) : A(0)) + sum);
  }
}

}  // namespace

void stream_weights_forward(Stream& stream, const Tensor& pre, const Tensor& mix, const Tensor& logits,
                            const Tensor& base, const Tensor& scale, const StreamMixing& mixing) {
  dispatch_accumulator(logits.dtype(), [&]<class A>() {
    launch(stream, weights_kernel<A>, Weights<A>(logits, base, scale, mixing), ptr<A>(pre), ptr<A>(mix));
  });
}

void stream_weights_backward(Stream& stream, const Tensor& dz, const Tensor& dlogits, const Tensor& dpre,
                             const Tensor& dmix, const Tensor& logits, const Tensor& base, const Tensor& scale,
                             const StreamMixing& mixing) {
  dispatch_accumulator(logits.dtype(), [&]<class A>() {
    launch(stream, weights_backward_kernel<A>, Weights<A>(logits, base, scale, mixing), ptr<A>(dz), ptr<A>(dlogits),
           ptr<const A>(dpre), ptr<const A>(dmix));
  });
}

void stream_scale_backward(Stream& stream, const Tensor& dscale, Write write, const Tensor& dz, const Tensor& logits,
                           int64_t streams) {
  dispatch_accumulator(logits.dtype(), [&]<class A>() {
    dispatch_device(dscale.dtype(), [&]<class G>() {
      scale_kernel<A, G><<<1, kSumThreads, 0, native(stream)>>>(
          ptr<G>(dscale), write == Write::accumulate, ptr<const A>(dz), ptr<const A>(logits), logits.elements(),
          static_cast<int>(logits.shape().last()), static_cast<int>(streams), static_cast<int>(dscale.elements()));
    });
  });
}

}  // namespace witan::kernels::cuda
