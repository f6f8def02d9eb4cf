// How a token's logits become scores and weights, and their gradients (kernels/router.h): a struct for each of Scores.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "witan/kernels/router.h"

namespace witan::kernels::cpu {

// out = softmax of the n values in[index(i)]; returns their logsumexp.
template <class A, class Index>
A softmax(A* out, const A* in, int64_t n, const Index& index) {
  A most = -std::numeric_limits<A>::infinity(), sum = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, in[index(i)]);
  for (int64_t i = 0; i < n; ++i) sum += out[i] = std::exp(in[index(i)] - most);
  for (int64_t i = 0; i < n; ++i) out[i] /= sum;
  return most + std::log(sum);
}

// What a token chose.
template <class A>
struct Chosen {
  const int32_t* ids;  // [K]
  const A *w, *dw;     // [K]: weights, and their gradient or null
  int64_t K;
};

struct SoftmaxScores {
  // Sets the scores p[E]; returns what the z-loss squares.
  template <class A>
  static A forward(A* p, const A* logits, int64_t E) {
    return softmax(p, logits, E, [](int64_t e) { return e; });
  }
  // Sets the weights w[K] of the chosen.
  template <class A>
  static void weigh(A* w, const A* p, const A*, const int32_t* ids, int64_t K) {
    for (int64_t k = 0; k < K; ++k) w[k] = p[ids[k]];
  }
  // d[E]: comes as the losses' gradient by p, leaves as all gradient by the logits. z_scale: that of the z-loss, by
  // lse.
  template <class A>
  static void backward(A* d, const A* p, int64_t E, const Chosen<A>& chosen, A z_scale) {
    if (chosen.dw)
      for (int64_t k = 0; k < chosen.K; ++k) d[chosen.ids[k]] += chosen.dw[k];
    A mean = 0;
    for (int64_t e = 0; e < E; ++e) mean += p[e] * d[e];
    for (int64_t e = 0; e < E; ++e) d[e] = p[e] * (d[e] - mean + z_scale);
  }
};

struct SoftmaxOfChosenScores {
  template <class A>
  static A forward(A* p, const A* logits, int64_t E) {
    return SoftmaxScores::forward(p, logits, E);
  }
  template <class A>
  static void weigh(A* w, const A*, const A* logits, const int32_t* ids, int64_t K) {
    softmax(w, logits, K, [&](int64_t k) { return ids[k]; });
  }
  template <class A>
  static void backward(A* d, const A* p, int64_t E, const Chosen<A>& chosen, A z_scale) {
    SoftmaxScores::backward(d, p, E, Chosen<A>{chosen.ids, chosen.w, nullptr, chosen.K}, z_scale);
    if (!chosen.dw) return;
    A mean = 0;
    for (int64_t k = 0; k < chosen.K; ++k) mean += chosen.w[k] * chosen.dw[k];
    for (int64_t k = 0; k < chosen.K; ++k) d[chosen.ids[k]] += chosen.w[k] * (chosen.dw[k] - mean);
  }
};

// body.operator()<one of the structs above>()
template <class Body>
void dispatch_scores(Scores scores, const Body& body) {
  switch (scores) {
    case Scores::softmax:
      return body.template operator()<SoftmaxScores>();
    case Scores::softmax_of_chosen:
      return body.template operator()<SoftmaxOfChosenScores>();
  }
}

}  // namespace witan::kernels::cpu
