// Sums and maxima over parts in the binary tree of comm/reduce.h, on the device.
#pragma once

#include <type_traits>

#include "witan/comm/cuda/kernels.h"
#include "witan/kernels/common/cuda/common.cuh"

namespace witan::cuda {

// Integers wrap as their unsigned types do.
template <class T>
struct SumOf {
  using type = kernels::cuda::Acc<T>;
};
template <>
struct SumOf<int32_t> {
  using type = uint32_t;
};
template <>
struct SumOf<int64_t> {
  using type = uint64_t;
};

struct Sum {
  template <class T>
  using Wide = typename SumOf<T>::type;
  template <class A>
  __device__ static A combine(A a, A b) {
    return a + b;
  }
};
struct Largest {
  template <class T>
  using Wide = std::conditional_t<std::is_integral_v<T>, T, kernels::cuda::Acc<T>>;
  template <class A>
  __device__ static A combine(A a, A b) {
    return a > b || a != a ? a : b;  // a NaN on either side wins
  }
};

// A part is followed by kLevels bits of its number.
inline constexpr int kTreeLevels = 9;
static_assert(kMostParts <= 1 << (kTreeLevels - 1));

// The reduction of load(part), a pack of N, over part in [0, count); kParts: count, where it is known before, or 0.
// Whole subtrees of 1, 2, 4 … parts wait in sums[level] as the digits of a binary counter, until a second one of their
// size comes. What is left in the end is joined from the smallest on: the tree's right edge.
template <class T, class Op, int N, int kParts, class Load>
__device__ __forceinline__ kernels::cuda::Pack<T, N> reduce_in_tree(int count, const Load& load) {
  using kernels::cuda::convert;
  using A = typename Op::template Wide<T>;
  const int n = kParts > 0 ? kParts : count;
  A sums[kTreeLevels][N];
#pragma unroll(kParts > 0 ? kParts : 1)
  for (int part = 0; part < n; ++part) {
    const kernels::cuda::Pack<T, N> in = load(part);
    A value[N];
#pragma unroll
    for (int j = 0; j < N; ++j) value[j] = convert<A>(in.at[j]);
    int level = 0;
#pragma unroll
    for (; level < kTreeLevels && ((part >> level) & 1) != 0; ++level)
#pragma unroll
      for (int j = 0; j < N; ++j) value[j] = Op::combine(sums[level][j], value[j]);
#pragma unroll
    for (int j = 0; j < N; ++j) sums[level][j] = value[j];
  }
  A total[N];
  bool begun = false;
#pragma unroll
  for (int level = 0; level < kTreeLevels; ++level) {
    if (((n >> level) & 1) == 0) continue;
#pragma unroll
    for (int j = 0; j < N; ++j) total[j] = begun ? Op::combine(sums[level][j], total[j]) : sums[level][j];
    begun = true;
  }
  kernels::cuda::Pack<T, N> result;
#pragma unroll
  for (int j = 0; j < N; ++j) result.at[j] = convert<T>(total[j]);
  return result;
}

// Calls body.template operator()<T, Op>() with the device type and the reduction.
template <class Body>
void with_reduction(DType dtype, Reduce reduce, const Body& body) {
  const auto with = [&]<class T>() {
    reduce == Reduce::sum ? body.template operator()<T, Sum>() : body.template operator()<T, Largest>();
  };
  if (dtype == DType::i32) return with.template operator()<int32_t>();
  if (dtype == DType::i64) return with.template operator()<int64_t>();
  kernels::cuda::dispatch_device(dtype, with);
}

}  // namespace witan::cuda
