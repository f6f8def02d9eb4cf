// Shared by the gradients of both norms: sums over rows that threads form beside a row's gradient, and the addition of
// that gradient to another.
#pragma once

#include "witan/kernels/common/cuda/add_strips.cuh"
#include "witan/kernels/common/cuda/rows.cuh"

namespace witan::kernels::cuda {

// A thread's part of sums over rows; empty if kSums is false.
template <bool kSums, class T, class Shape>
struct ColumnSums {
  Acc<T> at[kSums ? Shape::P : 1][kSums ? Shape::N : 1] = {};

  // strip[d] = the sum over the block's threads
  __device__ __forceinline__ void store(Acc<T>* strip, int64_t D) const {
    if constexpr (Shape::kRows == 1) {
      for_chunk<Shape>([&](int p, int j) {
        const int64_t d = Shape::element(0, p) + j;
        if (d < D) strip[d] = at[p][j];
      });
    } else {
      __shared__ Acc<T> shared[Shape::kRows][Shape::kChunk];
      for_chunk<Shape>([&](int p, int j) { shared[threadIdx.x / 32][Shape::element(0, p) + j] = at[p][j]; });
      __syncthreads();
      for (int64_t d = threadIdx.x; d < D; d += Shape::kThreads) {
        Acc<T> sum = 0;
#pragma unroll
        for (int i = 0; i < Shape::kRows; ++i) sum += shared[i][d];
        strip[d] = sum;
      }
    }
  }
};

// a b, rounded as a tensor of T would store it, and never fused with a later addition. So a sum of gradients has the
// same bits whether the norm and the addition are one kernel or two, as at the first block of a pipeline stage.
template <class T>
__device__ __forceinline__ Acc<T> rounded(Acc<T> a, Acc<T> b) {
  if constexpr (std::is_same_v<Acc<T>, double>)
    return __dmul_rn(a, b);
  else
    return convert<Acc<T>>(convert<T>(__fmul_rn(a, b)));
}

// As many strips as fill the largest supported device, on every device: the order of summation depends on their number.
inline constexpr int64_t kStripThreads = 132 * 512;

}  // namespace witan::kernels::cuda
