// Overwrites what belongs to slots that tokens did not choose.
#pragma once

#include "witan/kernels/common/cuda/common.cuh"

namespace witan::kernels::cuda {

inline constexpr int kUnchosenThreads = 256, kUnchosenWords = 1024;

// A block for each token, which marks its chosen slots in shared memory, a part of all slots at a time.
template <class A>
__global__ void __launch_bounds__(kUnchosenThreads)
    fill_unchosen_kernel(A* values, const int32_t* chosen, int K, int slots, A with) {
  __shared__ unsigned int bits[kUnchosenWords];
  const int64_t t = blockIdx.x;
  for (int begin = 0; begin < slots; begin += 32 * kUnchosenWords) {
    for (int i = threadIdx.x; i < kUnchosenWords; i += kUnchosenThreads) bits[i] = 0;
    __syncthreads();
    for (int m = threadIdx.x; m < K; m += kUnchosenThreads) {
      const int slot = chosen[t * K + m] - begin;
      if (slot >= 0 && slot < 32 * kUnchosenWords) atomicOr(bits + slot / 32, 1U << slot % 32);
    }
    __syncthreads();
    const int count = min(slots - begin, 32 * kUnchosenWords);
    for (int j = threadIdx.x; j < count; j += kUnchosenThreads)
      if ((bits[j / 32] >> j % 32 & 1U) == 0) values[t * slots + begin + j] = with;
    __syncthreads();
  }
}

// values[t, j] = with for slots j that are not in chosen[t, :];  values [T, C]   chosen [T, K] int32
template <class A>
void fill_unchosen(Stream& stream, const Tensor& values, const Tensor& chosen, A with) {
  fill_unchosen_kernel<A><<<static_cast<unsigned>(values.size(0)), kUnchosenThreads, 0, native(stream)>>>(
      ptr<A>(values), ptr<int32_t>(chosen), static_cast<int>(chosen.size(1)), static_cast<int>(values.size(1)), with);
}

}  // namespace witan::kernels::cuda
