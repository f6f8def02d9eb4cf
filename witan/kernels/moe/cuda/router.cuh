// What the router's two kernels share: a warp for each token, lane l of which holds experts l, l + 32, …
#pragma once

#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/moe/scores.h"

namespace witan::kernels::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kMostExperts = kMostExpertsOnGpu, kMostChosen = kMostChosenOnGpu;

// Whether row t is padding.
__device__ __forceinline__ bool is_padding(const int32_t* sequence_ids, int64_t t) {
  return sequence_ids != nullptr && sequence_ids[t] < 0;
}

// body.operator()<kPer>() with the number of experts of a lane, a power of two.
template <class Body>
void dispatch_experts(int64_t experts, int64_t chosen, const Body& body) {
  require<ShapeError>(experts <= kMostExperts && chosen <= kMostChosen, "the router on a GPU knows at most ",
                      kMostExperts, " experts and a top-k of ", kMostChosen, ", got ", experts, " and ", chosen);
  if (experts <= 32) return body.template operator()<1>();
  if (experts <= 64) return body.template operator()<2>();
  if (experts <= 128) return body.template operator()<4>();
  if (experts <= 256) return body.template operator()<8>();
  if (experts <= 512) return body.template operator()<16>();
  body.template operator()<32>();
}

}  // namespace witan::kernels::cuda
