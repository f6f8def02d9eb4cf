// The terms of one token, written once for both twins (kernels/objective/objective.h has the formulas). `Math` has
// exp(x) and log1p(x).
#pragma once

#include "witan/kernels/objective/objective.h"
#include "witan/kernels/pointwise/rules.h"

#if defined(__CUDACC__)
#define WITAN_RULE __device__ __forceinline__
#else
#define WITAN_RULE [[gnu::always_inline]] inline
#endif

namespace witan::kernels::rules {

template <class A>
struct PolicyTerms {
  A surrogate, ratio, clipped_low, clipped_high, slope;
};

template <class Math, class A>
WITAN_RULE PolicyTerms<A> policy_of(A log_ratio, A advantage, A importance, const PolicyOptions& options) {
  const A ratio = Math::exp(log_ratio), lowest = A(1 - options.clip_low), highest = A(1 + options.clip_high);
  const A bounded = ratio < lowest ? lowest : ratio > highest ? highest : ratio;
  const A free = ratio * advantage, clipped = bounded * advantage;
  const bool inside = !(clipped < free);
  return {.surrogate = -importance * (inside ? free : clipped),
          .ratio = ratio,
          .clipped_low = A(ratio < lowest && advantage < A(0)),
          .clipped_high = A(ratio > highest && advantage > A(0)),
          .slope = inside ? -importance * free : A(0)};
}

template <class Math, class A>
WITAN_RULE ValueAndSlope<A> kl_of(A log_ratio) {
  const A inverse = Math::exp(-log_ratio);
  return {inverse + log_ratio - A(1), A(1) - inverse};
}

struct PreferenceTerms {
  double loss, slope;  // by z
};

// -log sigmoid(z) = log(1 + exp(-z)), without overflow.
template <class Math>
WITAN_RULE double negative_log_sigmoid(double z) {
  return z > 0 ? Math::log1p(Math::exp(-z)) : Math::log1p(Math::exp(z)) - z;
}

template <class Math>
WITAN_RULE PreferenceTerms preference_of(double z, double label_smoothing) {
  const double wrong = 1 / (1 + Math::exp(z));  // the probability that the rejected text is better
  return {(1 - label_smoothing) * negative_log_sigmoid<Math>(z) + label_smoothing * negative_log_sigmoid<Math>(-z),
          label_smoothing * (1 - wrong) - (1 - label_smoothing) * wrong};
}

// The index of a token's sequence among those of all rows; -1: the token does not count.
WITAN_RULE int64_t sequence_of(int64_t t, int64_t row_tokens, int64_t capacity, float mask, int32_t id) {
  return mask > 0 && id >= 0 ? t / row_tokens * capacity + id : -1;
}

}  // namespace witan::kernels::rules

#undef WITAN_RULE
