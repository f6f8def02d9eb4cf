#include "witan/kernels/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "witan/kernels/cpu/rows.h"
#include "witan/kernels/step_value.h"

namespace witan::kernels::cpu {
namespace {

// How a token's logits become scores and weights, and their gradients (kernels/router.h): a struct for each of Scores.

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

// What the backward knows of a token.
template <class A>
struct Routed {
  const A *p, *logits;  // [E]: either, as the scores say
  A lse;
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
  // -ln p
  template <class A>
  static double surprisal(A, A logit, A lse) {
    return static_cast<double>(lse - logit);
  }
  // d[E]: comes as the losses' gradient by p, leaves as all gradient by the logits. z_scale: that of the z-loss, by
  // lse.
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
  static A forward(A* p, const A* logits, int64_t E) {
    return SoftmaxScores::forward(p, logits, E);
  }
  template <class A>
  static void weigh(A* w, const A*, const A* logits, const int32_t* ids, int64_t K) {
    softmax(w, logits, K, [&](int64_t k) { return ids[k]; });
  }
  template <class A>
  static double surprisal(A p, A logit, A lse) {
    return SoftmaxScores::surprisal(p, logit, lse);
  }
  template <class A>
  static void backward(A* d, const Routed<A>& token, int64_t E, const Chosen<A>& chosen, A z_scale) {
    SoftmaxScores::backward(d, token, E, Chosen<A>{chosen.ids, chosen.w, nullptr, chosen.K}, z_scale);
    if (!chosen.dw) return;
    A mean = 0;
    for (int64_t k = 0; k < chosen.K; ++k) mean += chosen.w[k] * chosen.dw[k];
    for (int64_t k = 0; k < chosen.K; ++k) d[chosen.ids[k]] += chosen.w[k] * (chosen.dw[k] - mean);
  }
};

struct SigmoidScores {
  template <class A>
  static A sigmoid(A logit) {
    return 1 / (1 + std::exp(-logit));
  }
  template <class A>
  static A forward(A* p, const A* logits, int64_t E) {
    const A lse = SoftmaxScores::forward(p, logits, E);
    A sum = 0;
    for (int64_t e = 0; e < E; ++e) sum += p[e] = sigmoid(logits[e]);
    for (int64_t e = 0; e < E; ++e) p[e] /= sum + A(kNoScores);
    return lse;
  }
  template <class A>
  static void weigh(A* w, const A*, const A* logits, const int32_t* ids, int64_t K) {
    A sum = 0;
    for (int64_t k = 0; k < K; ++k) sum += w[k] = sigmoid(logits[ids[k]]);
    if (K == 1) return;
    for (int64_t k = 0; k < K; ++k) w[k] /= sum + A(kNoScores);
  }
  template <class A>
  static double surprisal(A p, A, A) {
    return -std::log(static_cast<double>(p));
  }
  template <class A>
  static void backward(A* d, const Routed<A>& token, int64_t E, const Chosen<A>& chosen, A z_scale) {
    A sum = 0, mean = 0, sum_chosen = 0, mean_chosen = 0;
    for (int64_t e = 0; e < E; ++e) sum += sigmoid(token.logits[e]);
    sum += A(kNoScores);
    for (int64_t e = 0; e < E; ++e) mean += sigmoid(token.logits[e]) / sum * d[e];
    for (int64_t e = 0; e < E; ++e) d[e] = (d[e] - mean) / sum;
    for (int64_t k = 0; chosen.dw && k < chosen.K; ++k) {
      sum_chosen += sigmoid(token.logits[chosen.ids[k]]);
      mean_chosen += chosen.w[k] * chosen.dw[k];
    }
    for (int64_t k = 0; chosen.dw && k < chosen.K; ++k)
      d[chosen.ids[k]] += chosen.K > 1 ? (chosen.dw[k] - mean_chosen) / (sum_chosen + A(kNoScores)) : chosen.dw[k];
    for (int64_t e = 0; e < E; ++e) {
      const A s = sigmoid(token.logits[e]);
      d[e] = d[e] * s * (1 - s) + z_scale * std::exp(token.logits[e] - token.lse);
    }
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
    case Scores::sigmoid:
      return body.template operator()<SigmoidScores>();
  }
}

// Writes the K largest of scores[E] to ids, best first, by K passes: E and K are small.
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

void count(const Tensor& counts, const Tensor& ids) {
  const auto of = counts.span<int64_t>();
  std::ranges::fill(of, 0);
  for (const int32_t id : ids.span<int32_t>()) ++of[static_cast<size_t>(id)];
}

// The sums of kernels/router.h but for the entropy's: one task, in token order.
template <class A>
std::vector<double> token_sums(const RouterOutputs& out, int64_t sequences) {
  const int64_t T = out.probs.size(0), E = out.probs.size(1), length = T / sequences;
  std::vector<double> sums(static_cast<size_t>(sequences * E + kTokenSums));
  double& squares = sums[static_cast<size_t>(sequences * E)];
  for (int64_t t = 0; t < T; ++t) {
    double* of_sequence = sums.data() + t / length * E;
    for (int64_t e = 0; e < E; ++e) of_sequence[e] += static_cast<double>(out.probs.data<A>()[t * E + e]);
    const auto lse = static_cast<double>(out.lse.data<A>()[t]);
    squares += lse * lse;
  }
  return sums;
}

// Of all tokens, in their order.
template <class A, class Score>
double entropy_sum(const RouterOutputs& out, const Tensor& logits) {
  const int64_t T = logits.size(0), E = logits.size(1);
  double sum = 0;
  for (int64_t t = 0; t < T; ++t) {
    const A *p = out.probs.data<A>() + t * E, *logit = logits.data<A>() + t * E, lse = out.lse.data<A>()[t];
    for (int64_t e = 0; e < E; ++e)
      if (p[e] != 0) sum += static_cast<double>(p[e]) * Score::surprisal(p[e], logit[e], lse);
  }
  return sum;
}

// sums [B E + kTokenSums], counts [E] or [B, E]
template <class A, class Sum>
void write_means(const RouterOutputs& out, const Sum* sums, const Tensor& counts, int64_t T, int64_t K) {
  const auto loads = static_cast<size_t>(counts.elements());
  double balance = 0;
  for (size_t i = 0; i < loads; ++i)
    balance += static_cast<double>(sums[i]) * static_cast<double>(counts.data<int64_t>()[i]);
  const double tokens = std::max<double>(static_cast<double>(T), 1);
  out.balance.data<A>()[0] =
      static_cast<A>(balance * static_cast<double>(loads) / (tokens * tokens * static_cast<double>(K)));
  out.z.data<A>()[0] = static_cast<A>(static_cast<double>(sums[loads]) / tokens);
  out.entropy.data<A>()[0] = static_cast<A>(static_cast<double>(sums[loads + 1]) / tokens);
}

}  // namespace

void router_forward(Stream& stream, const RouterOutputs& out, const Tensor& logits, Scores scores) {
  const int64_t T = logits.size(0), E = logits.size(1), K = out.ids.size(1);
  dispatch_floating(logits.dtype(), [&]<class A>() {
    if constexpr (!std::is_same_v<A, bf16>) {
      dispatch_scores(scores, [&]<class Score>() {
        for_rows(stream, logits, [&](int64_t t) {
          const A* in = logits.data<A>() + t * E;
          A* p = out.probs.data<A>() + t * E;
          int32_t* ids = out.ids.data<int32_t>() + t * K;
          out.lse.data<A>()[t] = Score::forward(p, in, E);
          choose(in, E, ids, K);
          Score::weigh(out.weights.data<A>() + t * K, p, in, ids, K);
        });
      });
      count(out.counts, out.ids);
      std::vector<double> sums = token_sums<A>(out, 1);
      dispatch_scores(scores, [&]<class Score>() { sums.back() = entropy_sum<A, Score>(out, logits); });
      write_means<A>(out, sums.data(), out.counts, T, K);
    }
  });
}

void choose_with_bias(Stream& stream, const Tensor& ids, const Tensor& weights, const Tensor& logits,
                      const Tensor& bias) {
  const int64_t E = logits.size(1), K = ids.size(1);
  dispatch_floating(logits.dtype(), [&]<class A>() {
    if constexpr (!std::is_same_v<A, bf16>)
      for_rows(stream, logits, [&](int64_t t) {
        const A* in = logits.data<A>() + t * E;
        int32_t* chosen = ids.data<int32_t>() + t * K;
        std::vector<A> biased(static_cast<size_t>(E));
        for (int64_t e = 0; e < E; ++e)
          biased[static_cast<size_t>(e)] = SigmoidScores::sigmoid(in[e]) + A(bias.data<float>()[e]);
        choose(biased.data(), E, chosen, K);
        SigmoidScores::weigh(weights.data<A>() + t * K, in, in, chosen, K);
      });
  });
}

void update_expert_bias(Stream&, const Tensor& bias, const Tensor& load, const Tensor& step, double rate) {
  if (step.data<double>()[step_value::skip] != 0) return;
  const auto loads = load.span<int64_t>();
  const auto experts = static_cast<int64_t>(loads.size());
  const int64_t total = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t missing = total - experts * loads[static_cast<size_t>(e)];  // E (mean - load), exactly
    bias.data<float>()[e] += static_cast<float>((missing > 0) - (missing < 0)) * static_cast<float>(rate);
  }
}

void router_sums(Stream&, const Tensor& sums, const RouterOutputs& part) {
  const int64_t T = part.probs.size(0), sequences = (sums.elements() - kTokenSums) / part.probs.size(1);
  dispatch_floating(sums.dtype(), [&]<class A>() {
    if constexpr (!std::is_same_v<A, bf16>) {
      std::vector<double> of_part = token_sums<A>(part, sequences);
      of_part.back() = static_cast<double>(T) * static_cast<double>(part.entropy.data<A>()[0]);
      std::ranges::transform(of_part, sums.data<A>(), [](double sum) { return static_cast<A>(sum); });
    }
  });
}

void router_losses(Stream&, const RouterOutputs& out, const RouterTotals& totals) {
  dispatch_floating(totals.sums.dtype(), [&]<class A>() {
    if constexpr (!std::is_same_v<A, bf16>)
      write_means<A>(out, totals.sums.data<A>(), totals.counts, totals.tokens, totals.topk);
  });
}

void router_backward(Stream& stream, const Tensor& dlogits, const RouterGradients& gradients, const RouterOutputs& out,
                     Scores scores, int parts) {
  const int64_t T = dlogits.size(0), E = dlogits.size(1), K = out.ids.size(1), loads = out.counts.elements();
  const int64_t length = T / (loads / E);  // of a sequence that is balanced by itself
  dispatch_floating(dlogits.dtype(), [&]<class A>() {
    if constexpr (!std::is_same_v<A, bf16>) {
      const auto tokens = static_cast<A>(T * parts);
      const A dbalance = gradients.balance.defined() ? gradients.balance.data<A>()[0] : A(0);
      const A dz = gradients.z.defined() ? gradients.z.data<A>()[0] : A(0);
      const A balance_scale = dbalance * A(loads) / (tokens * tokens * A(K));
      const A* dweights = gradients.weights.defined() ? gradients.weights.data<A>() : nullptr;
      dispatch_scores(scores, [&]<class Score>() {
        for_rows(stream, dlogits, [&](int64_t t) {
          const Chosen<A> chosen{out.ids.data<int32_t>() + t * K, out.weights.data<A>() + t * K,
                                 dweights ? dweights + t * K : nullptr, K};
          const int64_t* counts = out.counts.data<int64_t>() + t / length * E;
          A* d = dlogits.data<A>() + t * E;
          for (int64_t e = 0; e < E; ++e) d[e] = balance_scale * A(counts[e]);
          const Routed<A> token{out.probs.defined() ? out.probs.data<A>() + t * E : nullptr,
                                out.logits.defined() ? out.logits.data<A>() + t * E : nullptr, out.lse.data<A>()[t]};
          Score::backward(d, token, E, chosen, dz * 2 * token.lse / tokens);
        });
      });
    }
  });
}

}  // namespace witan::kernels::cpu
