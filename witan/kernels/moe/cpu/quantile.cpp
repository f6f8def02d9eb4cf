#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/common/step_report.h"
#include "witan/kernels/moe/cpu/router_scores.h"
#include "witan/kernels/moe/selection.h"

namespace witan::kernels::cpu {
namespace {

// Replaces NaN by -inf, so that values have a total order.
template <class A>
A ordered(A value) {
  return std::isnan(value) ? -std::numeric_limits<A>::infinity() : value;
}

int64_t in_units(double quantile) {
  if (std::isnan(quantile)) return 0;
  return std::llrint(std::clamp(quantile, -kMostQuantile, kMostQuantile) * kQuantileUnit);
}

}  // namespace

void choose_by_quantiles(Stream& stream, const Tensor& ids, const Tensor& margins, const Tensor& logits,
                         const Tensor& bias, const Tensor& sequence_ids) {
  const int64_t T = logits.size(0), E = logits.size(1), K = ids.size(1);
  dispatch_floating(logits.dtype(), [&]<class A>() {
    if constexpr (std::is_same_v<A, Accumulator<A>>)
      for_rows(stream, logits, [&](int64_t t) {
        const A* in = logits.data<A>() + t * E;
        if (is_padding(sequence_ids, t)) {
          std::fill_n(ids.data<int32_t>() + t * K, K, -1);
          for (int64_t e = 0; margins.defined() && e < E; ++e)
            margins.data<A>()[e * T + t] = -std::numeric_limits<A>::infinity();
          return;
        }
        std::vector<A> biased(static_cast<size_t>(E));
        for (int64_t e = 0; e < E; ++e) biased[static_cast<size_t>(e)] = ordered(in[e] + A(bias.data<float>()[e]));
        std::vector<int32_t> order(static_cast<size_t>(E));
        std::iota(order.begin(), order.end(), 0);
        const auto end = order.begin() + K + 1;
        std::partial_sort(order.begin(), end, order.end(), [&](int32_t a, int32_t b) {
          const A of_a = biased[static_cast<size_t>(a)], of_b = biased[static_cast<size_t>(b)];
          return of_a != of_b ? of_a > of_b : a < b;
        });
        std::copy_n(order.begin(), K, ids.data<int32_t>() + t * K);
        if (!margins.defined()) return;
        const A threshold = biased[static_cast<size_t>(order[static_cast<size_t>(K)])];
        for (int64_t e = 0; e < E; ++e) margins.data<A>()[e * T + t] = in[e] - threshold;
      });
  });
}

void quantile_sums(Stream& stream, const Tensor& sums, const Tensor& margins, int64_t topk, const Tensor& counted) {
  const int64_t R = margins.size(0), E = margins.size(1), T = margins.size(2);
  const int64_t tokens = counted.defined() ? counted.data<int64_t>()[0] : R * T;
  int64_t* out = sums.data<int64_t>();
  out[E] = tokens > 0 ? 1 : 0;
  if (tokens == 0) {
    std::fill_n(out, E, 0);
    return;
  }
  dispatch_floating(margins.dtype(), [&]<class A>() {
    if constexpr (std::is_same_v<A, Accumulator<A>>)
      stream.pool().run(E, [&](int64_t e) {
        std::vector<A> column;
        column.reserve(static_cast<size_t>(R * T));
        for (int64_t r = 0; r < R; ++r)
          for (int64_t t = 0; t < T; ++t) column.push_back(ordered(margins.data<A>()[(r * E + e) * T + t]));
        const auto nth = column.begin() + tokens * topk / E;
        std::nth_element(column.begin(), nth, column.end(), std::greater<>());
        out[e] = in_units(static_cast<double>(*nth));
      });
  });
}

void update_quantile_bias(Stream&, const Tensor& bias, const Tensor& sums, const Tensor& step) {
  const int64_t E = bias.elements(), *of = sums.data<int64_t>(), micro_batches = of[E];
  if (step.data<double>()[step_value::skip] != 0 || micro_batches == 0) return;
  const double unit = kQuantileUnit * static_cast<double>(micro_batches);
  const int64_t total = std::accumulate(of, of + E, int64_t{0});
  for (int64_t e = 0; e < E; ++e)
    bias.data<float>()[e] = static_cast<float>(static_cast<double>(total) / static_cast<double>(E) / unit -
                                               static_cast<double>(of[e]) / unit);
}

}  // namespace witan::kernels::cpu
