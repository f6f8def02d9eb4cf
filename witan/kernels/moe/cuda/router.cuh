// Shared by the router's kernels, which give each token to a warp; lane l holds experts l, l + 32, …
#pragma once

#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/moe/router.h"
#include "witan/kernels/moe/scores.h"

namespace witan::kernels::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kMostExperts = kMostExpertsOnGpu, kMostChosen = kMostChosenOnGpu;

// Whether row t is padding.
__device__ __forceinline__ bool is_padding(const int32_t* sequence_ids, int64_t t) {
  return sequence_ids != nullptr && sequence_ids[t] < 0;
}

// Calls body.operator()<kPer>() with the number of experts per lane, rounded up to a power of two.
template <class Body>
void dispatch_experts(int64_t experts, int64_t chosen, const Body& body) {
  require<ShapeError>(experts <= kMostExperts && chosen <= kMostChosen, "the router on a GPU supports at most ",
                      kMostExperts, " experts and a top-k of ", kMostChosen, ", got ", experts, " and ", chosen);
  if (experts <= 32) return body.template operator()<1>();
  if (experts <= 64) return body.template operator()<2>();
  if (experts <= 128) return body.template operator()<4>();
  if (experts <= 256) return body.template operator()<8>();
  if (experts <= 512) return body.template operator()<16>();
  body.template operator()<32>();
}

// The score of an expert, computed from its logit alone.
template <Scores kScores, class A>
__device__ __forceinline__ A score_each(A logit) {
  if constexpr (kScores == Scores::sqrtsoftplus)
    return sqrt(max(logit, A(0)) + log1p(exp(-abs(logit))));
  else
    return 1 / (1 + exp(-logit));
}

// The derivative of the score s with respect to the logit.
template <Scores kScores, class A>
__device__ __forceinline__ A slope_each(A logit, A s) {
  if constexpr (kScores == Scores::sqrtsoftplus)
    return s > 0 ? score_each<Scores::sigmoid>(logit) / (2 * s) : A(0);
  else
    return s * (1 - s);
}

// The factor from the scores of a token's chosen experts, of which lane l holds l, l + 32, to their unscaled weights.
template <Scores kScores, class A, int kSlots>
__device__ __forceinline__ A each_scale(const A (&chosen)[kSlots], int K, bool divides) {
  A total = 0;
#pragma unroll
  for (int s = 0; s < kSlots; ++s)
    total += static_cast<int>(threadIdx.x) % 32 + 32 * s < K ? score_each<kScores>(chosen[s]) : A(0);
  return divides ? 1 / (warp_sum(total) + A(kNoScores)) : A(1);
}

// Calls body.template operator()<kScores>() with softmax, which stands for both softmax kinds, or an elementwise kind.
template <class Body>
void dispatch_scores(Scores scores, const Body& body) {
  if (scores == Scores::sigmoid) return body.template operator()<Scores::sigmoid>();
  if (scores == Scores::sqrtsoftplus) return body.template operator()<Scores::sqrtsoftplus>();
  body.template operator()<Scores::softmax>();
}

}  // namespace witan::kernels::cuda
