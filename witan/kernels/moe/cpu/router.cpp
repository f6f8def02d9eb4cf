#include "witan/kernels/moe/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/common/step_report.h"
#include "witan/kernels/moe/cpu/router_scores.h"

namespace witan::kernels::cpu {
namespace {

void count(const Tensor& counts, const Tensor& ids) {
  const auto of = counts.span<int64_t>();
  std::ranges::fill(of, 0);
  for (const int32_t id : ids.span<int32_t>())
    if (id >= 0) ++of[static_cast<size_t>(id)];
}

// The sums of kernels/moe/router.h except the entropy's, formed by one task in token order.
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

// The sum of all tokens' entropies, in order.
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

// The number of tokens among the `rows` rows of all parts, some of which may be padding.
int64_t tokens_of(const RouterOutputs& out, int64_t rows) {
  return out.tokens.defined() ? out.tokens.data<int64_t>()[0] : rows;
}

// sum_b 1 / n_b^2 sum_e sums[b,e] counts[b,e], where sequence b of B has n_b tokens and E counts.
template <class Sum>
double balance_of_padded(const Sum* sums, const Tensor& counts, int64_t E, int64_t K) {
  double balance = 0;
  for (int64_t first = 0; first < counts.elements(); first += E) {
    double sum = 0, assignments = 0;
    for (int64_t i = first; i < first + E; ++i) {
      const auto count = static_cast<double>(counts.data<int64_t>()[i]);
      sum += static_cast<double>(sums[i]) * count;
      assignments += count;
    }
    const double tokens = assignments / static_cast<double>(K);
    if (tokens > 0) balance += sum / (tokens * tokens);
  }
  return balance;
}

// Writes the losses of T rows with K choices each. sums [B E + kTokenSums], counts [E] or [B, E].
template <class A, class Sum>
void write_means(const RouterOutputs& out, const Sum* sums, const Tensor& counts, int64_t T, int64_t K) {
  const auto loads = static_cast<size_t>(counts.elements());
  const double tokens = std::max<double>(static_cast<double>(tokens_of(out, T)), 1);
  if (out.tokens.defined()) {
    const int64_t E = out.counts.elements();
    const auto per_sequence = static_cast<double>(E * E) / static_cast<double>(loads * static_cast<size_t>(K));
    out.balance.data<A>()[0] = static_cast<A>(balance_of_padded(sums, counts, E, K) * per_sequence);
  } else {
    double balance = 0;
    for (size_t i = 0; i < loads; ++i)
      balance += static_cast<double>(sums[i]) * static_cast<double>(counts.data<int64_t>()[i]);
    out.balance.data<A>()[0] =
        static_cast<A>(balance * static_cast<double>(loads) / (tokens * tokens * static_cast<double>(K)));
  }
  out.z.data<A>()[0] = static_cast<A>(static_cast<double>(sums[loads]) / tokens);
  out.entropy.data<A>()[0] = static_cast<A>(static_cast<double>(sums[loads + 1]) / tokens);
}

// The choice of token t with its unscaled weights and their gradient, which `unscaled` holds if it differs.
template <class A>
Chosen<A> chosen_of(const RouterOutputs& out, const A* dweights, int64_t t, const Scoring& scoring,
                    std::vector<A>& unscaled) {
  const int64_t K = out.ids.size(1);
  const A *w = out.weights.data<A>() + t * K, *dw = dweights ? dweights + t * K : nullptr;
  if (dw && scoring.scaling != 1) {
    for (int64_t k = 0; k < K; ++k) unscaled.push_back(w[k] / A(scoring.scaling));
    for (int64_t k = 0; k < K; ++k) unscaled.push_back(dw[k] * A(scoring.scaling));
    w = unscaled.data();
    dw = unscaled.data() + K;
  }
  return {out.ids.data<int32_t>() + t * K, w, dw, K, scoring.divides(K)};
}

// E / (tokens N), or 0 without tokens.
double scale_of(const Tensor& counts, const TokenCount& count) {
  const int64_t tokens = count.counted.defined() ? count.counted.data<int64_t>()[0] : count.rows;
  const auto of = counts.span<int64_t>();
  const int64_t total = std::accumulate(of.begin(), of.end(), int64_t{0});
  if (tokens == 0 || total == 0) return 0;
  return static_cast<double>(of.size()) / (static_cast<double>(tokens) * static_cast<double>(total));
}

}  // namespace

void router_forward(Stream& stream, const RouterOutputs& out, const Tensor& logits, const Scoring& scoring) {
  const int64_t T = logits.size(0), E = logits.size(1), K = out.ids.size(1);
  dispatch_floating(logits.dtype(), [&]<class A>() {
    if constexpr (std::is_same_v<A, Accumulator<A>>) {
      dispatch_scores(scoring.scores, [&]<class Score>() {
        for_rows(stream, logits, [&](int64_t t) {
          const A* in = logits.data<A>() + t * E;
          A* p = out.probs.data<A>() + t * E;
          int32_t* ids = out.ids.data<int32_t>() + t * K;
          if (is_padding(out.sequence_ids, t)) {
            choose_none(ids, out.weights.data<A>() + t * K, K);
            std::fill_n(p, E, A(0));
            out.lse.data<A>()[t] = 0;
            return;
          }
          out.lse.data<A>()[t] = Score::forward(p, in, E);
          choose(in, E, ids, K);
          weigh<Score>(out.weights.data<A>() + t * K, p, in, ids, K, scoring);
        });
      });
      count(out.counts, out.ids);
      std::vector<double> sums = token_sums<A>(out, 1);
      dispatch_scores(scoring.scores, [&]<class Score>() { sums.back() = entropy_sum<A, Score>(out, logits); });
      RouterOutputs of_rows = out;
      of_rows.tokens = {};  // count_tokens() has not counted them yet
      write_means<A>(of_rows, sums.data(), out.counts, T, K);
    }
  });
}

void count_tokens(Stream&, const Tensor& tokens, const Tensor& counts, int64_t topk) {
  const auto of = counts.span<int64_t>();
  tokens.data<int64_t>()[0] = std::accumulate(of.begin(), of.end(), int64_t{0}) / topk;
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
    if constexpr (std::is_same_v<A, Accumulator<A>>) {
      std::vector<double> of_part = token_sums<A>(part, sequences);
      of_part.back() = static_cast<double>(T) * static_cast<double>(part.entropy.data<A>()[0]);
      std::ranges::transform(of_part, sums.data<A>(), [](double sum) { return static_cast<A>(sum); });
    }
  });
}

void router_losses(Stream&, const RouterOutputs& out, const RouterTotals& totals) {
  dispatch_floating(totals.sums.dtype(), [&]<class A>() {
    if constexpr (std::is_same_v<A, Accumulator<A>>)
      write_means<A>(out, totals.sums.data<A>(), totals.counts, totals.tokens, totals.topk);
  });
}

void router_backward(Stream& stream, const Tensor& dlogits, const RouterGradients& gradients, const RouterOutputs& out,
                     const Scoring& scoring, int parts) {
  const int64_t T = dlogits.size(0), E = dlogits.size(1), K = out.ids.size(1), loads = out.counts.elements();
  const int64_t length = T / (loads / E);  // of a sequence, if sequences are balanced separately
  dispatch_floating(dlogits.dtype(), [&]<class A>() {
    if constexpr (std::is_same_v<A, Accumulator<A>>) {
      const auto tokens = static_cast<A>(tokens_of(out, T * parts));
      const A dbalance = gradients.balance.defined() ? gradients.balance.data<A>()[0] : A(0);
      const A dz = gradients.z.defined() ? gradients.z.data<A>()[0] : A(0);
      const A balance_scale = dbalance * A(loads) / (tokens * tokens * A(K));
      // The scale for a sequence with these assignments, some of whose rows are padding.
      const auto padded_scale = [&](const int64_t* counts) {
        const auto own = static_cast<A>(std::accumulate(counts, counts + E, int64_t{0})) / A(K);
        return own > 0 ? dbalance * A(E * E) / (A(loads) * own * own * A(K)) : A(0);
      };
      const A* dprobs = gradients.probs.defined() ? gradients.probs.data<A>() : nullptr;
      const A* dweights = gradients.weights.defined() ? gradients.weights.data<A>() : nullptr;
      dispatch_scores(scoring.scores, [&]<class Score>() {
        for_rows(stream, dlogits, [&](int64_t t) {
          A* d = dlogits.data<A>() + t * E;
          if (out.ids.data<int32_t>()[t * K] < 0) {
            std::fill_n(d, E, A(0));
            return;
          }
          std::vector<A> unscaled;
          const Chosen<A> chosen = chosen_of(out, dweights, t, scoring, unscaled);
          const int64_t* counts = out.counts.data<int64_t>() + t / length * E;
          const A scale = out.tokens.defined() ? padded_scale(counts) : balance_scale;
          for (int64_t e = 0; e < E; ++e) d[e] = scale * A(counts[e]) + (dprobs ? dprobs[e] : A(0));
          const Routed<A> token{out.probs.defined() ? out.probs.data<A>() + t * E : nullptr,
                                out.logits.defined() ? out.logits.data<A>() + t * E : nullptr, out.lse.data<A>()[t]};
          Score::backward(d, token, E, chosen, dz * 2 * token.lse / tokens);
        });
      });
    }
  });
}

void balance_loss(Stream&, const Tensor& loss, const Tensor& sums, const Tensor& counts, const TokenCount& tokens) {
  const int64_t experts = counts.elements(), loads = sums.elements() - kTokenSums;
  dispatch_floating(sums.dtype(), [&]<class A>() {
    if constexpr (std::is_same_v<A, Accumulator<A>>) {
      double sum = 0;
      for (int64_t i = 0; i < loads; ++i)
        sum += static_cast<double>(sums.data<A>()[i]) * static_cast<double>(counts.data<int64_t>()[i % experts]);
      loss.data<A>()[0] = static_cast<A>(sum * scale_of(counts, tokens));
    }
  });
}

void balance_backward(Stream&, const Tensor& dprobs, const Tensor& dloss, const Tensor& counts,
                      const TokenCount& tokens, Write write) {
  dispatch_floating(dprobs.dtype(), [&]<class A>() {
    if constexpr (std::is_same_v<A, Accumulator<A>>) {
      const double scale = static_cast<double>(dloss.data<A>()[0]) * scale_of(counts, tokens);
      for (int64_t e = 0; e < counts.elements(); ++e) {
        const A before = write == Write::accumulate ? dprobs.data<A>()[e] : A(0);
        dprobs.data<A>()[e] = before + static_cast<A>(scale * static_cast<double>(counts.data<int64_t>()[e]));
      }
    }
  });
}

}  // namespace witan::kernels::cpu
