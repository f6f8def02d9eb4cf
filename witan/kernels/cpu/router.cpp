#include "witan/kernels/router.h"

#include <cmath>
#include <limits>
#include <vector>

#include "witan/kernels/cpu/rows.h"

namespace witan::kernels::cpu {
namespace {

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

// out = softmax of the n values in[index(i)]; returns their logsumexp.
template <class A, class Index>
A softmax(A* out, const A* in, int64_t n, const Index& index) {
  A most = -std::numeric_limits<A>::infinity(), sum = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, in[index(i)]);
  for (int64_t i = 0; i < n; ++i) sum += out[i] = std::exp(in[index(i)] - most);
  for (int64_t i = 0; i < n; ++i) out[i] /= sum;
  return most + std::log(sum);
}

void count(const Tensor& counts, const Tensor& ids) {
  const auto of = counts.span<int64_t>();
  std::ranges::fill(of, 0);
  for (const int32_t id : ids.span<int32_t>()) ++of[static_cast<size_t>(id)];
}

// sum_t p[t,e] of each of the sequences, then sum_t lse[t]^2: one task, in token order.
template <class A>
std::vector<double> token_sums(const RouterOutputs& out, int64_t sequences) {
  const int64_t T = out.probs.size(0), E = out.probs.size(1), length = T / sequences;
  std::vector<double> sums(static_cast<size_t>(sequences * E + 1));
  for (int64_t t = 0; t < T; ++t) {
    double* of_sequence = sums.data() + t / length * E;
    for (int64_t e = 0; e < E; ++e) of_sequence[e] += static_cast<double>(out.probs.data<A>()[t * E + e]);
    const auto lse = static_cast<double>(out.lse.data<A>()[t]);
    sums.back() += lse * lse;
  }
  return sums;
}

struct Losses {
  double balance, z;
};
// counts [E], or [B, E]
template <class Sum>
Losses losses_of(const Sum* sums, const Tensor& counts, int64_t T, int64_t K) {
  const auto loads = static_cast<size_t>(counts.elements());
  double balance = 0;
  for (size_t i = 0; i < loads; ++i)
    balance += static_cast<double>(sums[i]) * static_cast<double>(counts.data<int64_t>()[i]);
  const double tokens = std::max<double>(static_cast<double>(T), 1);
  return {balance * static_cast<double>(loads) / (tokens * tokens * static_cast<double>(K)),
          static_cast<double>(sums[loads]) / tokens};
}

template <class A>
void write(const Losses& losses, const Tensor& balance, const Tensor& z) {
  balance.data<A>()[0] = static_cast<A>(losses.balance);
  z.data<A>()[0] = static_cast<A>(losses.z);
}

}  // namespace

void router_forward(Stream& stream, const RouterOutputs& out, const Tensor& logits, bool pre_softmax) {
  const int64_t T = logits.size(0), E = logits.size(1), K = out.ids.size(1);
  dispatch_floating(logits.dtype(), [&]<class A>() {
    if constexpr (!std::is_same_v<A, bf16>) {
      for_rows(stream, logits, [&](int64_t t) {
        const A* in = logits.data<A>() + t * E;
        A* p = out.probs.data<A>() + t * E;
        int32_t* ids = out.ids.data<int32_t>() + t * K;
        A* w = out.weights.data<A>() + t * K;
        out.lse.data<A>()[t] = softmax(p, in, E, [](int64_t e) { return e; });
        choose(in, E, ids, K);
        if (pre_softmax)
          for (int64_t k = 0; k < K; ++k) w[k] = p[ids[k]];
        else
          softmax(w, in, K, [&](int64_t k) { return ids[k]; });
      });
      count(out.counts, out.ids);
      write<A>(losses_of(token_sums<A>(out, 1).data(), out.counts, T, K), out.balance, out.z);
    }
  });
}

void router_sums(Stream&, const Tensor& sums, const RouterOutputs& part) {
  const int64_t sequences = (sums.elements() - 1) / part.probs.size(1);
  dispatch_floating(sums.dtype(), [&]<class A>() {
    if constexpr (!std::is_same_v<A, bf16>)
      std::ranges::transform(token_sums<A>(part, sequences), sums.data<A>(),
                             [](double sum) { return static_cast<A>(sum); });
  });
}

void router_losses(Stream&, const Tensor& balance, const Tensor& z, const RouterTotals& totals) {
  dispatch_floating(totals.sums.dtype(), [&]<class A>() {
    if constexpr (!std::is_same_v<A, bf16>)
      write<A>(losses_of(totals.sums.data<A>(), totals.counts, totals.tokens, totals.topk), balance, z);
  });
}

void router_backward(Stream& stream, const Tensor& dlogits, const RouterGradients& gradients, const RouterOutputs& out,
                     bool pre_softmax, int parts) {
  const int64_t T = dlogits.size(0), E = dlogits.size(1), K = out.ids.size(1), loads = out.counts.elements();
  const int64_t length = T / (loads / E);  // of a sequence that is balanced by itself
  dispatch_floating(dlogits.dtype(), [&]<class A>() {
    if constexpr (!std::is_same_v<A, bf16>) {
      const auto tokens = static_cast<A>(T * parts);
      const A dbalance = gradients.balance.defined() ? gradients.balance.data<A>()[0] : A(0);
      const A dz = gradients.z.defined() ? gradients.z.data<A>()[0] : A(0);
      const A balance_scale = dbalance * A(loads) / (tokens * tokens * A(K));
      const A* dweights = gradients.weights.defined() ? gradients.weights.data<A>() : nullptr;
      for_rows(stream, dlogits, [&](int64_t t) {
        const A *p = out.probs.data<A>() + t * E, *w = out.weights.data<A>() + t * K;
        const int32_t* ids = out.ids.data<int32_t>() + t * K;
        const A* dw = dweights ? dweights + t * K : nullptr;
        const int64_t* counts = out.counts.data<int64_t>() + t / length * E;
        A* d = dlogits.data<A>() + t * E;
        for (int64_t e = 0; e < E; ++e) d[e] = balance_scale * A(counts[e]);
        if (pre_softmax && dw)
          for (int64_t k = 0; k < K; ++k) d[ids[k]] += dw[k];
        A mean = 0;
        for (int64_t e = 0; e < E; ++e) mean += p[e] * d[e];
        const A z_scale = dz * 2 * out.lse.data<A>()[t] / tokens;
        for (int64_t e = 0; e < E; ++e) d[e] = p[e] * (d[e] - mean + z_scale);
        if (pre_softmax || !dw) return;
        A chosen = 0;
        for (int64_t k = 0; k < K; ++k) chosen += w[k] * dw[k];
        for (int64_t k = 0; k < K; ++k) d[ids[k]] += w[k] * (dw[k] - chosen);
      });
    }
  });
}

}  // namespace witan::kernels::cpu
