// A warp's choice of the largest of a token's scores; lane l holds the scores of experts l, l + 32, …
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "witan/kernels/moe/cuda/router.cuh"

namespace witan::kernels::cuda {

// Scores as unsigned integers in the same order, which the hardware can reduce; 0, below all scores, means no score.
template <class A>
using Key = std::conditional_t<std::is_same_v<A, float>, uint32_t, uint64_t>;

__device__ __forceinline__ uint32_t key_of(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);  // -0 equals 0
  return score != score ? 0 : bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float score_of(uint32_t key) {
  return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}
__device__ __forceinline__ uint64_t key_of(double score) {
  const auto bits = static_cast<uint64_t>(__double_as_longlong(score + 0.0));
  return score != score ? 0 : bits >> 63 ? ~bits : bits | uint64_t{1} << 63;
}
__device__ __forceinline__ double score_of(uint64_t key) {
  return __longlong_as_double(static_cast<long long>(key >> 63 ? key & ~(uint64_t{1} << 63) : ~key));
}
__device__ __forceinline__ uint32_t warp_max_key(uint32_t key) {
  return __reduce_max_sync(kAllLanes, key);
}
__device__ __forceinline__ uint64_t warp_max_key(uint64_t key) {
  const auto high = static_cast<uint32_t>(key >> 32);
  const uint32_t most = __reduce_max_sync(kAllLanes, high);
  const uint32_t low = __reduce_max_sync(kAllLanes, high == most ? static_cast<uint32_t>(key) : 0);
  return static_cast<uint64_t>(most) << 32 | low;
}

// The scores of a token that have not been chosen yet.
template <class A, int kPer>
struct Candidates {
  Key<A> keys[kPer];
  uint32_t nan = 0, free = 0;  // bit j: expert lane + 32 j
  bool any_nan;

  __device__ __forceinline__ Candidates(const A (&scores)[kPer], int experts) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const bool real = lane + 32 * j < experts;
      keys[j] = real ? key_of(scores[j]) : 0;
      free |= static_cast<uint32_t>(real) << j;
      nan |= static_cast<uint32_t>(real && scores[j] != scores[j]) << j;
    }
    any_nan = __any_sync(kAllLanes, nan != 0);
  }
  __device__ __forceinline__ Key<A> largest() const {
    Key<A> key = keys[0];
#pragma unroll
    for (int j = 1; j < kPer; ++j) key = max(key, keys[j]);
    return warp_max_key(key);
  }
  // Takes the best score, and of equal ones that of the lower index. The first NaN counts as best if it comes first,
  // otherwise as worst.
  __device__ __forceinline__ int take(A& score) {
    const int lane = threadIdx.x % 32;
    const Key<A> best = largest();
    unsigned mine = ~0u;
#pragma unroll
    for (int j = kPer; j-- > 0;)
      if (keys[j] == best) mine = lane + 32 * j;
    auto expert = static_cast<int>(__reduce_min_sync(kAllLanes, mine));
    score = score_of(best);
    if (any_nan) {
      const unsigned first = __reduce_min_sync(kAllLanes, free ? lane + 32u * (__ffs(free) - 1) : ~0u);
      if (__any_sync(kAllLanes, first % 32 == lane && (nan >> first / 32 & 1))) {
        expert = static_cast<int>(first);
        score = std::numeric_limits<A>::quiet_NaN();
      }
    }
#pragma unroll
    for (int j = 0; j < kPer; ++j)
      if (expert == lane + 32 * j) {
        keys[j] = 0;
        free &= ~(1u << j);
      }
    return expert;
  }
};

}  // namespace witan::kernels::cuda
