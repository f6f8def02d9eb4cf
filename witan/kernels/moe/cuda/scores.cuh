// Scores of experts that depend on their own logits alone, and the weights of the chosen: a warp for each token.
#pragma once

#include "witan/kernels/moe/cuda/router.cuh"
#include "witan/kernels/moe/router.h"

namespace witan::kernels::cuda {

template <Scores kScores, class A>
__device__ __forceinline__ A score_each(A logit) {
  if constexpr (kScores == Scores::sqrtsoftplus)
    return sqrt(max(logit, A(0)) + log1p(exp(-abs(logit))));
  else
    return 1 / (1 + exp(-logit));
}

// The derivative where the score is s.
template <Scores kScores, class A>
__device__ __forceinline__ A slope_each(A logit, A s) {
  if constexpr (kScores == Scores::sqrtsoftplus)
    return s > 0 ? score_each<Scores::sigmoid>(logit) / (2 * s) : A(0);
  else
    return s * (1 - s);
}

// What the scores of a token's chosen logits, of which lane l holds l, l + 32, are multiplied with to be weights that
// are not scaled yet.
template <Scores kScores, class A, int kSlots>
__device__ __forceinline__ A each_scale(const A (&chosen)[kSlots], int K, bool divides) {
  A total = 0;
#pragma unroll
  for (int s = 0; s < kSlots; ++s)
    total += static_cast<int>(threadIdx.x) % 32 + 32 * s < K ? score_each<kScores>(chosen[s]) : A(0);
  return divides ? 1 / (warp_sum(total) + A(kNoScores)) : A(1);
}

// Calls body.template operator()<kScores>() with one of softmax, which stands for both kinds, and those of each alone.
template <class Body>
void dispatch_scores(Scores scores, const Body& body) {
  if (scores == Scores::sigmoid) return body.template operator()<Scores::sigmoid>();
  if (scores == Scores::sqrtsoftplus) return body.template operator()<Scores::sqrtsoftplus>();
  body.template operator()<Scores::softmax>();
}

}  // namespace witan::kernels::cuda
