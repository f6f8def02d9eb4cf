#include "witan/kernels/cross_entropy.h"

#include <limits>

#include "witan/kernels/cpu/math.h"
#include "witan/kernels/cpu/rows.h"
#include "witan/kernels/cpu/store.h"

namespace witan::kernels::cpu {
namespace {

// log sum_v exp(in[v]), shifted by the largest. A NaN is no maximum, but comes through the sum.
template <class A, class T>
A log_sum_exp(const T* in, int64_t V) {
  A largest = -std::numeric_limits<A>::infinity();
#pragma omp simd reduction(max : largest)
  for (int64_t v = 0; v < V; ++v) largest = A(in[v]) > largest ? A(in[v]) : largest;
  constexpr int64_t kBlock = 4096;  // keeps the rounding of a large vocabulary's sum small
  A total = 0;
  for (int64_t first = 0; first < V; first += kBlock) {
    A block = 0;
#pragma omp simd reduction(+ : block)
    for (int64_t v = first; v < std::min(first + kBlock, V); ++v) block += fast_exp(A(in[v]) - largest);
    total += block;
  }
  return largest + std::log(total);
}

}  // namespace

void cross_entropy_forward(Stream& stream, const Tensor& loss, const Tensor& losses, const Tensor& lse,
                           const Tensor& logits, const Tensor& targets, const Tensor& weights) {
  const int64_t T_ = logits.size(0), V = logits.size(1);
  dispatch_floating(logits.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    A *token_loss = losses.data<A>(), *log_sum = lse.data<A>();
    const A* weight = weights.data<A>();
    for_rows(stream, logits, [&](int64_t t) {
      token_loss[t] = log_sum[t] = A(0);
      if (weight[t] == A(0)) return;
      const T* in = logits.data<T>() + t * V;
      log_sum[t] = log_sum_exp<A>(in, V);
      token_loss[t] = log_sum[t] - A(in[targets.data<int32_t>()[t]]);
    });
    double sum = 0;
    for (int64_t t = 0; t < T_; ++t) sum += static_cast<double>(weight[t]) * static_cast<double>(token_loss[t]);
    *loss.data<A>() = A(sum);
  });
}

void cross_entropy_backward(Stream& stream, const Tensor& dlogits, const Tensor& dloss, const Tensor& logits,
                            const Tensor& lse, const Tensor& targets, const Tensor& weights) {
  dispatch_floating(logits.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const A seed = dloss.defined() ? *dloss.data<A>() : A(1);
    for_rows(stream, logits, [&, V = logits.size(1)](int64_t t) {
      const T* in = logits.data<T>() + t * V;
      T* out = dlogits.data<T>() + t * V;  // may be `in`
      if (weights.data<A>()[t] == A(0)) {
        std::fill_n(out, V, T(0.0f));
        return;
      }
      const A scale = seed * weights.data<A>()[t], log_sum = lse.data<A>()[t];
      const int64_t target = targets.data<int32_t>()[t];
      const A at_target = fast_exp(A(in[target]) - log_sum) - A(1);
#pragma omp simd
      for (int64_t v = 0; v < V; ++v) store(out[v], scale * fast_exp(A(in[v]) - log_sum));
      store(out[target], scale * at_target);
    });
  });
}

void cross_entropy_fused(Stream& stream, const CrossEntropyOutputs& out, const Tensor& logits, const Tensor& targets,
                         const Tensor& weights) {
  cpu::cross_entropy_forward(stream, out.loss, out.losses, out.lse, logits, targets, weights);
  cpu::cross_entropy_backward(stream, out.dlogits, {}, logits, out.lse, targets, weights);
}

}  // namespace witan::kernels::cpu
