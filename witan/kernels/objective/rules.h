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
WITAN_RULE PreferenceTerms preference_of(double z, const PreferenceOptions& options) {
  if (options.loss == PreferenceOptions::Loss::hinge) return {z < 1 ? 1 - z : 0.0, z < 1 ? -1.0 : 0.0};
  if (options.loss == PreferenceOptions::Loss::ipo) {
    const double apart = (z - 0.5) / options.beta;
    return {apart * apart, 2 * apart / options.beta};
  }
  const double wrong = 1 / (1 + Math::exp(z));  // the probability that the rejected text is better
  const bool robust = options.loss == PreferenceOptions::Loss::robust;
  const double flipped = robust ? -options.label_smoothing : options.label_smoothing;
  const double scale = robust ? 1 / (1 - 2 * options.label_smoothing) : 1;
  const double kept = 1 - options.label_smoothing;
  return {scale * (kept * negative_log_sigmoid<Math>(z) + flipped * negative_log_sigmoid<Math>(-z)),
          scale * (flipped * (1 - wrong) - kept * wrong)};
}

struct PairTerms {
  double loss, accuracy, margin, reward, slope;  // reward, slope: of the token's own text
};

// The terms of a token of one of the texts of a pair, but for its own loss. `own`, `other`: sums of log ratios of its
// text and of the other one, over `own_count` and `other_count` tokens.
template <class Math>
WITAN_RULE PairTerms pair_of(double own, double other, double own_count, double other_count, bool is_chosen,
                             const PreferenceOptions& options) {
  const double sign = is_chosen ? 1 : -1, margin = sign * options.beta * (own - other);
  const double z = options.averages ? sign * options.beta * (own / own_count - other / other_count) : margin;
  const PreferenceTerms found = preference_of<Math>(z, options);
  return {.loss = found.loss,
          .accuracy = margin > 0 ? 1.0 : 0.0,
          .margin = margin,
          .reward = 2 * options.beta * own,
          .slope = sign * 2 * (options.averages ? 1 : own_count) * options.beta * found.slope};
}

// The index of a token's sequence among those of all rows; -1: the token does not count.
WITAN_RULE int64_t sequence_of(int64_t t, int64_t row_tokens, int64_t capacity, float mask, int32_t id) {
  return mask > 0 && id >= 0 ? t / row_tokens * capacity + id : -1;
}

}  // namespace witan::kernels::rules

#undef WITAN_RULE
