// Computes scores and weights from a token's logits, and chooses the largest; shared by the kernels of
// kernels/moe/router.h and kernels/moe/selection.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/moe/router.h"

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

// A token's choice.
template <class A>
struct Chosen {
  const int32_t* ids;  // [K]
  const A *w, *dw;     // [K]: weights before they are scaled, and their gradient or null
  int64_t K;
  bool divides;  // from Scoring
};

// A token's inputs to the backward.
template <class A>
struct Routed {
  const A *p, *logits;  // [E]: either, depending on the scores
  A lse;
};

// Each of the following structs implements one value of Scores.
struct SoftmaxScores {
  // Sets the scores p[E]; returns the value whose square is the z-loss.
  template <class A>
  static A forward(A* p, const A* logits, int64_t E) {
    return softmax(p, logits, E, [](int64_t e) { return e; });
  }
  // The score by which groups of experts are compared.
  template <class A>
  static A key(A p, A) {
    return p;
  }
  // Sets the unscaled weights w[K] of the chosen experts.
  template <class A>
  static void weigh(A* w, const A* p, const A*, const int32_t* ids, int64_t K, bool) {
    for (int64_t k = 0; k < K; ++k) w[k] = p[ids[k]];
  }
  // -ln p
  template <class A>
  static double surprisal(A, A logit, A lse) {
    return static_cast<double>(lse - logit);
  }
  // d[E] is the gradient of the losses with respect to p on entry, and of everything with respect to the logits on
  // return. z_scale is the gradient of the z-loss with respect to lse.
  template <class A>
  static void backward(A* d, const Routed<A>& token, int64_t E, const Chosen<A>& chosen, A z_scale) {
    const A* p = token.p;
    if (chosen.dw)
      for (int64_t k = 0; k < chosen.K; ++k) d[chosen.ids[k]] += chosen.dw[k];
    A mean = 0;
    for (int64_t e = 0; e < E; ++e) mean += p[e] * d[e];
    for (int64_t e = 0; e < E; ++e) d[e] = p[e] * (d[e] - mean + z_scale);
  }
};

struct SoftmaxOfChosenScores {
  template <class A>
  static A key(A, A logit) {
    return logit;
  }
  template <class A>
  static A forward(A* p, const A* logits, int64_t E) {
    return SoftmaxScores::forward(p, logits, E);
  }
  template <class A>
  static void weigh(A* w, const A*, const A* logits, const int32_t* ids, int64_t K, bool) {
    softmax(w, logits, K, [&](int64_t k) { return ids[k]; });
  }
  template <class A>
  static double surprisal(A p, A logit, A lse) {
    return SoftmaxScores::surprisal(p, logit, lse);
  }
  template <class A>
  static void backward(A* d, const Routed<A>& token, int64_t E, const Chosen<A>& chosen, A z_scale) {
    SoftmaxScores::backward(d, token, E, Chosen<A>{chosen.ids, chosen.w, nullptr, chosen.K, false}, z_scale);
    if (!chosen.dw) return;
    A mean = 0;
    for (int64_t k = 0; k < chosen.K; ++k) mean += chosen.w[k] * chosen.dw[k];
    for (int64_t k = 0; k < chosen.K; ++k) d[chosen.ids[k]] += chosen.w[k] * (chosen.dw[k] - mean);
  }
};

// s(x), and its derivative given the value s.
struct Sigmoid {
  template <class A>
  static A score(A logit) {
    return 1 / (1 + std::exp(-logit));
  }
  template <class A>
  static A slope(A, A s) {
    return s * (1 - s);
  }
};

struct SqrtSoftplus {
  template <class A>
  static A score(A logit) {
    return std::sqrt(std::max(logit, A(0)) + std::log1p(std::exp(-std::abs(logit))));
  }
  // sigmoid(x) / (2 s), which goes to 0 with s
  template <class A>
  static A slope(A logit, A s) {
    return s > 0 ? Sigmoid::score(logit) / (2 * s) : A(0);
  }
};

// Each expert's score is a function of its own logit.
template <class Function>
struct ScoresEachAlone {
  template <class A>
  static A key(A, A logit) {
    return Function::score(logit);
  }
  template <class A>
  static A forward(A* p, const A* logits, int64_t E) {
    const A lse = SoftmaxScores::forward(p, logits, E);
    A sum = 0;
    for (int64_t e = 0; e < E; ++e) sum += p[e] = Function::score(logits[e]);
    for (int64_t e = 0; e < E; ++e) p[e] /= sum + A(kNoScores);
    return lse;
  }
  template <class A>
  static void weigh(A* w, const A*, const A* logits, const int32_t* ids, int64_t K, bool divides) {
    A sum = 0;
    for (int64_t k = 0; k < K; ++k) sum += w[k] = Function::score(logits[ids[k]]);
    if (!divides) return;
    for (int64_t k = 0; k < K; ++k) w[k] /= sum + A(kNoScores);
  }
  template <class A>
  static double surprisal(A p, A, A) {
    return -std::log(static_cast<double>(p));
  }
  template <class A>
  static void backward(A* d, const Routed<A>& token, int64_t E, const Chosen<A>& chosen, A z_scale) {
    A sum = 0, mean = 0, sum_chosen = 0, mean_chosen = 0;
    for (int64_t e = 0; e < E; ++e) sum += Function::score(token.logits[e]);
    sum += A(kNoScores);
    for (int64_t e = 0; e < E; ++e) mean += Function::score(token.logits[e]) / sum * d[e];
    for (int64_t e = 0; e < E; ++e) d[e] = (d[e] - mean) / sum;
    for (int64_t k = 0; chosen.dw && k < chosen.K; ++k) {
      sum_chosen += Function::score(token.logits[chosen.ids[k]]);
      mean_chosen += chosen.w[k] * chosen.dw[k];
    }
    for (int64_t k = 0; chosen.dw && k < chosen.K; ++k)
      d[chosen.ids[k]] += chosen.divides ? (chosen.dw[k] - mean_chosen) / (sum_chosen + A(kNoScores)) : chosen.dw[k];
    for (int64_t e = 0; e < E; ++e) {
      const A logit = token.logits[e];
      d[e] = d[e] * Function::slope(logit, Function::score(logit)) + z_scale * std::exp(logit - token.lse);
    }
  }
};

// Calls body.operator()<one of the structs above>().
template <class Body>
void dispatch_scores(Scores scores, const Body& body) {
  switch (scores) {
    case Scores::softmax:
      return body.template operator()<SoftmaxScores>();
    case Scores::softmax_of_chosen:
      return body.template operator()<SoftmaxOfChosenScores>();
    case Scores::sigmoid:
      return body.template operator()<ScoresEachAlone<Sigmoid>>();
    case Scores::sqrtsoftplus:
      return body.template operator()<ScoresEachAlone<SqrtSoftplus>>();
  }
}

// Sets the scaled weights w[K] of the chosen experts.
template <class Score, class A>
void weigh(A* w, const A* p, const A* logits, const int32_t* ids, int64_t K, const Scoring& scoring) {
  Score::weigh(w, p, logits, ids, K, scoring.divides(K));
  if (scoring.scaling == 1) return;
  for (int64_t k = 0; k < K; ++k) w[k] *= A(scoring.scaling);
}

// Writes a choice of no experts, as padding has.
template <class A>
void choose_none(int32_t* ids, A* w, int64_t K) {
  std::fill_n(ids, K, -1);
  std::fill_n(w, K, A(0));
}

// Writes the indices of the K largest of scores[E] to ids, best first. It makes K passes, since E and K are small.
template <class A>
void choose(const A* scores, int64_t E, int32_t* ids, int64_t K) {
  for (int64_t k = 0; k < K; ++k) {
    int32_t best = -1;
    for (int32_t e = 0; e < E; ++e) {
      const bool taken = std::find(ids, ids + k, e) != ids + k;
      if (!taken && (best < 0 || scores[e] > scores[best])) best = e;
    }
    ids[k] = best;
  }
}

}  // namespace witan::kernels::cpu
