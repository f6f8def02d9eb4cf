// Updates are bound by memory bandwidth: every element is read and written once, in ranges divided among the threads.
#include "witan/kernels/optimizer/optimizer.h"

#include <cmath>
#include <type_traits>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/common/cpu/weights.h"
#include "witan/kernels/optimizer/optimizer_table.h"
#include "witan/kernels/optimizer/update_rules.h"

namespace witan::kernels::cpu {
namespace {

// Updates element i. A separate function keeps arrays out of the loop around it, which is then vectorised.
template <class Rule, class T, class G, class... S>
[[gnu::always_inline]] inline void update_element(int64_t i, const Rule& rule, const G* gradient, T* value,
                                                  Remainder<T>* remainder, S*... state) {
  using A = Accumulator<T>;
  A p = weight(value, remainder, i), own[sizeof...(S) + 1] = {A(state[i])...};
  rule(A(gradient[i]), p, own);
  store_weight(value, remainder, i, p);
  [[maybe_unused]] int n = 0;
  ((state[i] = S(own[n++])), ...);
}

// S: the types of the state tensors.
template <class Rule, class T, class G, class... S>
void update_range(int64_t begin, int64_t end, const Rule rule, const G* __restrict gradient, T* __restrict value,
                  Remainder<T>* __restrict remainder, S* __restrict... state) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) update_element(i, rule, gradient, value, remainder, state...);
}

// Calls body(pointer to the first state, …), each of type A or bfloat16.
template <class A, int kLeft, class Body, class... Before>
void with_state(const UpdateTensors& t, const Body& body, Before... before) {
  constexpr size_t kAt = sizeof...(Before);
  if constexpr (kLeft == 0) {
    body(before...);
  } else {
    const Tensor& state = t.state[kAt];
    if (state.dtype() == DType::bf16)
      with_state<A, kLeft - 1>(t, body, before..., state.data<bf16>());
    else
      with_state<A, kLeft - 1>(t, body, before..., state.data<A>());
  }
}

template <template <class> class Rule, class Args>
void update(Stream& stream, const UpdateItem& item, const double* step, const Args& args) {
  const UpdateTensors& t = item.tensors;
  dispatch_update(t.value, t.gradient, [&]<class T, class G>() {
    using A = Accumulator<T>;
    Rule<A> rule = Rule<A>::make(step, args);
    rule.decay = A(item.weight_decay * step[step_value::weight_decay]);
    with_state<A, Rule<A>::kStates>(t, [&](auto*... state) {
      stream.pool().for_ranges(t.value.elements(), kTaskElements, [&](int64_t begin, int64_t end) {
        update_range<Rule<A>>(begin, end, rule, static_cast<const G*>(t.gradient.data<G>()), t.value.data<T>(),
                              remainder_of<T>(t.value, t.remainder), state...);
      });
    });
  });
}

template <template <class> class Rule, class Args>
void update_all(Stream& stream, std::span<const UpdateItem> items, const Tensor& step, const Args& args) {
  if (step.data<double>()[step_value::skip] != 0) return;
  for (const UpdateItem& item : items) update<Rule>(stream, item, step.data<double>(), args);
}

bool is_spike(const double* recent, int64_t known, double now, double sigma) {
  double mean = 0, squares = 0;
  for (int64_t i = 0; i < known; ++i) mean += recent[i];
  mean /= static_cast<double>(known);
  for (int64_t i = 0; i < known; ++i) squares += (recent[i] - mean) * (recent[i] - mean);
  return now - mean > sigma * std::sqrt(squares / static_cast<double>(known - 1));
}

}  // namespace

void adamw_all(Stream& stream, std::span<const UpdateItem> items, const Tensor&, const Tensor& step,
               const AdamWArgs& args) {
  update_all<AdamWRule>(stream, items, step, args);
}

void sgd_all(Stream& stream, std::span<const UpdateItem> items, const Tensor&, const Tensor& step,
             const SgdArgs& args) {
  if (args.momentum == 0)
    update_all<DescentRule>(stream, items, step, args);
  else
    update_all<MomentumRule>(stream, items, step, args);
}

void lion_all(Stream& stream, std::span<const UpdateItem> items, const Tensor&, const Tensor& step,
              const LionArgs& args) {
  update_all<LionRule>(stream, items, step, args);
}

void ademamix_all(Stream& stream, std::span<const UpdateItem> items, const Tensor&, const Tensor& step,
                  const AdEMAMixArgs& args) {
  update_all<AdEMAMixRule>(stream, items, step, args);
}

void square_sums(Stream& stream, const Tensor& sums, const Tensor& x) {
  const auto [P, N] = x.shape().as_rows();
  const int64_t chunks = chunks_of(N);
  assert(sums.shape() == (Shape{P * chunks, 2}));
  dispatch_floating(x.dtype(), [&, N = N]<class T>() {
    stream.pool().run(P * chunks, [&](int64_t task) {
      const int64_t begin = task % chunks * kChunkElements, count = std::min(kChunkElements, N - begin);
      const T* in = x.data<T>() + task / chunks * N + begin;
      double squares = 0;
      int64_t zeros = 0;
#pragma omp simd reduction(+ : squares, zeros)
      for (int64_t i = 0; i < count; ++i) {
        const auto value = static_cast<double>(in[i]);
        squares += value * value;
        zeros += value == 0;
      }
      double* out = sums.data<double>() + 2 * task;
      out[0] = squares;
      out[1] = static_cast<double>(zeros);
    });
  });
}

void square_sums_all(Stream& stream, const Tensor& sums, std::span<const SquareSumsItem> items, const Tensor&) {
  for (const auto& [x, first_row] : items) {
    const auto [pieces, elements] = x.shape().as_rows();
    cpu::square_sums(stream, sums.narrow(0, first_row, pieces * chunks_of(elements)), x);
  }
}

void total_sums(Stream&, const Tensor& total, const Tensor& sums, const Tensor& order) {
  const double* in = sums.data<double>();
  double squares = 0, zeros = 0;
  for (const int64_t row : order.span<int64_t>()) {
    squares += in[2 * row];
    zeros += in[2 * row + 1];
  }
  total.data<double>()[0] = squares;
  total.data<double>()[1] = zeros;
}

void clip_by_norm(Stream&, const Tensor& step, const Tensor& total, double max_norm) {
  double* now = step.data<double>();
  const double norm = std::sqrt(total.data<double>()[0]);
  if (now[step_value::skip] >= 0) now[step_value::skip] = std::isfinite(norm) ? 0 : 1;
  now[step_value::gradient_scale] = max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1;
}

void unscale_total(Stream&, const Tensor& total, const Tensor& scaler) {
  const double scale = scaler.data<double>()[loss_scaler::scale];
  total.data<double>()[0] /= scale * scale;
}

void adapt_loss_scale(Stream&, const Tensor& step, const Tensor& scaler, const LossScaleArgs& args) {
  adapt_loss_scale_rule(step.data<double>(), scaler.data<double>(), args);
}

void scale_losses(Stream&, const Tensor& scaled, const Tensor& weights, const Tensor& scaler) {
  dispatch_floating(scaled.dtype(), [&]<class A>() {
    const A scale = A(scaler.data<double>()[loss_scaler::scale]);
    for (int64_t i = 0; i < scaled.elements(); ++i) scaled.data<A>()[i] = A(A(weights.data<A>()[i]) * scale);
  });
}

void skip_spikes(Stream&, const Tensor& step, const Tensor& history, const Tensor& total, const Tensor& losses,
                 const Tensor& order, double sigma) {
  if (const double skip = step.data<double>()[step_value::skip]; skip > 1 || skip < 0) return;
  const int64_t window = (history.elements() - 1) / 2;
  double* seen = history.data<double>();
  double* recent[] = {seen + 1, seen + 1 + window};
  double now[] = {0, std::sqrt(total.data<double>()[0])};
  for (const int64_t i : order.span<int64_t>()) now[0] += losses.data<double>()[i];
  bool skips = !std::isfinite(now[0]) || !std::isfinite(now[1]);
  if (!skips) {
    const auto steps = static_cast<int64_t>(*seen), known = std::min(steps, window);
    for (int which = 0; which < 2; ++which) {
      if (known >= spike_steps_needed(window)) skips |= is_spike(recent[which], known, now[which], sigma);
      recent[which][steps % window] = now[which];
    }
    *seen += 1;
  }
  if (skips) step.data<double>()[step_value::skip] = 1;
}

}  // namespace witan::kernels::cpu
