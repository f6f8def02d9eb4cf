#include <algorithm>
#include <numeric>
#include <type_traits>

#include "witan/kernels/moe/router.h"

namespace witan::kernels::cpu {
namespace {

// E / (tokens N); of no tokens 0.
double scale_of(const Tensor& counts, const TokenCount& count) {
  const int64_t tokens = count.counted.defined() ? count.counted.data<int64_t>()[0] : count.rows;
  const auto of = counts.span<int64_t>();
  const int64_t total = std::accumulate(of.begin(), of.end(), int64_t{0});
  if (tokens == 0 || total == 0) return 0;
  return static_cast<double>(of.size()) / (static_cast<double>(tokens) * static_cast<double>(total));
}

}  // namespace

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
