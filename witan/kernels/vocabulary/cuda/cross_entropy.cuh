// Shared by the kernels of cross entropy.
#pragma once

#include <limits>

#include "witan/kernels/common/cuda/common.cuh"

namespace witan::kernels::cuda {

// Within 2^-22 of the exact value for small x; results below the least normal number are flushed to 0.
__device__ __forceinline__ float quick_exp(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
  return y;
}
__device__ __forceinline__ double quick_exp(double x) {
  return exp(x);
}

// The sum of exp(x - most) over the added values; the maximum ignores NaNs, but the sum does not.
template <class A>
struct LogSumExp {
  A most = -std::numeric_limits<A>::infinity(), sum = 0;

  template <int N>
  __device__ __forceinline__ void add(const A (&x)[N]) {
    A larger = most;
#pragma unroll
    for (int n = 0; n < N; ++n) larger = max(larger, x[n]);
    const A shift = larger == -std::numeric_limits<A>::infinity() ? A(0) : larger;
    sum *= quick_exp(most - shift);
    most = larger;
#pragma unroll
    for (int n = 0; n < N; ++n) sum += quick_exp(x[n] - shift);
  }
  // Reduces over all threads of the block.
  __device__ __forceinline__ A over_block(A* shared) const {
    A all = block_max(most, shared);
    if (all == -std::numeric_limits<A>::infinity()) all = 0;  // so that -inf can be subtracted
    return all + log(block_sum(sum * quick_exp(most - all), shared));
  }
};

// The gradient of a row's logits, whose scale is dloss times the row's weight.
template <class T>
struct Gradient {
  Acc<T> scale, lse;
  int target;
  __device__ __forceinline__ T at(T x, int v) const {
    const Acc<T> p = quick_exp(convert<Acc<T>>(x) - lse);
    return convert<T>(scale * (v == target ? p - 1 : p));
  }
};

// loss = sum_t weights[t] losses[t]
void sum_losses(Stream& stream, const Tensor& loss, const Tensor& losses, const Tensor& weights);

}  // namespace witan::kernels::cuda
