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

__device__ __forceinline__ float rounded_product(float a, float b) {
  return __fmul_rn(a, b);
}
__device__ __forceinline__ double rounded_product(double a, double b) {
  return __dmul_rn(a, b);
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
    sum = fma(sum, quick_exp(most - shift), quick_exp(x[0] - shift));
    most = larger;
#pragma unroll
    for (int n = 1; n < N; ++n) sum += quick_exp(x[n] - shift);
  }
  // Reduces over a warp, for all its threads. The product is rounded before it is added, in every kernel.
  __device__ __forceinline__ LogSumExp over_warp() const {
    LogSumExp all;
    all.most = warp_max(most);
    all.sum = warp_sum(most == all.most ? sum : rounded_product(sum, quick_exp(most - all.most)));
    return all;
  }
};

// All kernels add a row of logits in one order, so that a token's loss has the same bits in each of them. The row's
// packs of 16 bytes belong to 1024 lanes in turn. A lane adds its packs two at a time, as if the row were continued
// with logits of minus infinity, which change no sum; then the lanes of a warp are added, then the warps.
constexpr int kLanes = 1024, kWarpsOfLanes = kLanes / 32;

// The log-sum-exp of a row on all threads of a block. A thread has the lanes threadIdx.x, + blockDim.x, …, kOwn of
// them. Shared memory `partials` [2, kWarpsOfLanes] may be used again after another barrier.
template <int kOwn, class A>
__device__ __forceinline__ A log_sum_exp(const LogSumExp<A> (&lanes)[kOwn], A* partials) {
  A *most = partials, *sum = partials + kWarpsOfLanes;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const LogSumExp<A> of_warp = lanes[i].over_warp();
    const int warp = i * (kWarpsOfLanes / kOwn) + static_cast<int>(threadIdx.x) / 32;
    if (threadIdx.x % 32 == 0) most[warp] = of_warp.most, sum[warp] = of_warp.sum;
  }
  __syncthreads();
  static_assert(kWarpsOfLanes == 32);
  LogSumExp<A> mine;
  mine.most = most[threadIdx.x % 32];
  mine.sum = sum[threadIdx.x % 32];
  const LogSumExp<A> row = mine.over_warp();
  return row.most + log(row.sum);
}

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
