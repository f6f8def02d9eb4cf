#include <limits>

#include "witan/kernels/common/cpu/math.h"
#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan::kernels::cpu {
namespace {

template <class A>
constexpr A kLowest = -std::numeric_limits<A>::infinity();

// log sum_v exp(in[v]), shifted by the maximum. The maximum ignores NaNs, but the sum does not.
template <class A, class T>
A log_sum_exp(const T* in, int64_t V) {
  A largest = kLowest<A>;
#pragma omp simd reduction(max : largest)
  for (int64_t v = 0; v < V; ++v) largest = A(in[v]) > largest ? A(in[v]) : largest;
  if (largest == kLowest<A>) largest = 0;  // so that -inf can be subtracted
  constexpr int64_t kBlock = 4096;         // keeps the rounding error of a large vocabulary's sum small
  A total = 0;
  for (int64_t first = 0; first < V; first += kBlock) {
    A block = 0;
#pragma omp simd reduction(+ : block)
    for (int64_t v = first; v < std::min(first + kBlock, V); ++v) block += fast_exp(A(in[v]) - largest);
    total += block;
  }
  return largest + std::log(total);
}

// Calls each(t, log_sum, at_target) for every token, in any order, with zeros if the weight is 0. at_target is 0 if the
// target is not among the columns' ids.
template <class A, class T, class Each>
void for_tokens(Stream& stream, const Tensor& logits, const Tensor& targets, const Tensor& weights,
                const WordColumns& columns, const Each& each) {
  for_rows(stream, logits, [&, V = logits.size(1)](int64_t t) {
    if (weights.data<A>()[t] == A(0)) return each(t, A(0), A(0));
    const T* in = logits.data<T>() + t * V;
    const int64_t target = targets.data<int32_t>()[t] - columns.begin;
    each(t, log_sum_exp<A>(in, columns.words), target >= 0 && target < columns.words ? A(in[target]) : A(0));
  });
}

template <class A>
void sum_losses(const Tensor& loss, const Tensor& losses, const Tensor& weights) {
  double sum = 0;
  for (int64_t t = 0; t < losses.elements(); ++t)
    sum += static_cast<double>(weights.data<A>()[t]) * static_cast<double>(losses.data<A>()[t]);
  *loss.data<A>() = A(sum);
}

// log sum_r exp(of_ranks[r * apart])
template <class A>
A log_sum_exp_of_ranks(const A* of_ranks, int64_t n, int64_t apart) {
  A largest = kLowest<A>, total = 0;
  for (int64_t r = 0; r < n; ++r) largest = of_ranks[r * apart] > largest ? of_ranks[r * apart] : largest;
  if (largest == kLowest<A>) largest = 0;
  for (int64_t r = 0; r < n; ++r) total += fast_exp(of_ranks[r * apart] - largest);
  return largest + std::log(total);
}

}  // namespace

void cross_entropy_forward(Stream& stream, const Tensor& loss, const Tensor& losses, const Tensor& lse,
                           const Tensor& logits, const Tensor& targets, const Tensor& weights, int64_t words) {
  dispatch_floating(logits.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_tokens<A, T>(stream, logits, targets, weights, {0, words}, [&](int64_t t, A log_sum, A at_target) {
      lse.data<A>()[t] = log_sum;
      losses.data<A>()[t] = log_sum - at_target;
    });
    sum_losses<A>(loss, losses, weights);
  });
}

void cross_entropy_backward(Stream& stream, const Tensor& dlogits, const Tensor& dloss, const Tensor& logits,
                            const Tensor& lse, const Tensor& targets, const Tensor& weights,
                            const WordColumns& columns) {
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
      const int64_t target = targets.data<int32_t>()[t] - columns.begin, words = columns.words;
      const bool here = target >= 0 && target < words;
      const A at_target = here ? fast_exp(A(in[target]) - log_sum) - A(1) : A(0);
#pragma omp simd
      for (int64_t v = 0; v < words; ++v) store(out[v], scale * fast_exp(A(in[v]) - log_sum));
      std::fill(out + words, out + V, T(0.0f));
      if (here) store(out[target], scale * at_target);
    });
  });
}

void token_entropies(Stream& stream, const Tensor& entropies, const Tensor& logits, const Tensor& lse,
                     const Tensor& weights, int64_t words) {
  dispatch_floating(logits.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_rows(stream, logits, [&, V = logits.size(1)](int64_t t) {
      A sum = 0;
      const T* in = logits.data<T>() + t * V;
      const A log_sum = lse.data<A>()[t];
      const int64_t read = weights.data<A>()[t] == A(0) ? 0 : words;
#pragma omp simd reduction(+ : sum)
      for (int64_t v = 0; v < read; ++v) {
        // A logit of minus infinity has no part, where 0 x infinity would be NaN.
        const A log_p = std::max(A(in[v]) - log_sum, std::numeric_limits<A>::lowest());
        sum -= fast_exp(log_p) * log_p;
      }
      entropies.data<A>()[t] = sum;
    });
  });
}

void cross_entropy_fused(Stream& stream, const CrossEntropyOutputs& out, const Tensor& logits, const Tensor& targets,
                         const Tensor& weights, int64_t words) {
  cpu::cross_entropy_forward(stream, out.loss, out.losses, out.lse, logits, targets, weights, words);
  cpu::cross_entropy_backward(stream, out.dlogits, {}, logits, out.lse, targets, weights, {0, words});
}

void cross_entropy_part(Stream& stream, const Tensor& part, const Tensor& logits, const Tensor& targets,
                        const Tensor& weights, const WordColumns& columns) {
  dispatch_floating(logits.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    A *log_sums = part.data<A>(), *at_targets = log_sums + logits.size(0);
    for_tokens<A, T>(stream, logits, targets, weights, columns, [&](int64_t t, A log_sum, A at_target) {
      log_sums[t] = log_sum;
      at_targets[t] = at_target;
    });
  });
}

void cross_entropy_combine(Stream& stream, const Tensor& loss, const Tensor& losses, const Tensor& lse,
                           const Tensor& parts, const Tensor& weights) {
  const int64_t n = parts.size(0), T_ = parts.size(2);
  dispatch_floating(weights.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_rows(stream, weights.reshape({T_, 1}), [&](int64_t t) {
      lse.data<A>()[t] = losses.data<A>()[t] = A(0);
      if (weights.data<A>()[t] == A(0)) return;
      const A *log_sums = parts.data<A>() + t, *at_targets = log_sums + T_;
      A at_target = 0;
      for (int64_t r = 0; r < n; ++r) at_target += at_targets[r * 2 * T_];
      lse.data<A>()[t] = log_sum_exp_of_ranks(log_sums, n, 2 * T_);
      losses.data<A>()[t] = lse.data<A>()[t] - at_target;
    });
    sum_losses<A>(loss, losses, weights);
  });
}

}  // namespace witan::kernels::cpu
