// Updates are bound by memory: every element is read and written once, in ranges of the pool.
#include "witan/kernels/optimizer.h"

#include <cmath>
#include <type_traits>

#include "witan/base/split_float.h"
#include "witan/kernels/cpu/rows.h"

namespace witan::kernels::cpu {
namespace {

// What is updated: the value where it is as wide as its sums, else the float32 whose upper half it is.
template <class T>
inline constexpr bool kIsSplit = !std::is_same_v<T, Accumulator<T>>;

template <class T>
[[gnu::always_inline]] inline Accumulator<T> weight(const T* value, const bf16* remainder, int64_t i) {
  if constexpr (kIsSplit<T>)
    return join({value[i].bits, remainder[i].bits});
  else
    return value[i];
}
template <class T>
[[gnu::always_inline]] inline void store_weight(T* value, bf16* remainder, int64_t i, Accumulator<T> p) {
  if constexpr (kIsSplit<T>) {
    const SplitFloat halves = split(p);
    value[i].bits = halves.upper;
    remainder[i].bits = halves.lower;
  } else {
    value[i] = p;
  }
}

template <class T>
bf16* remainder_of(const Tensor& value, const Tensor& remainder) {
  assert(remainder.defined() == kIsSplit<T> && (!kIsSplit<T> || remainder.shape() == value.shape()));
  return kIsSplit<T> ? remainder.data<bf16>() : nullptr;
}

// body.operator()<T, G>() with the types of value and gradient.
template <class Body>
void dispatch_update(const Tensor& value, const Tensor& gradient, const Body& body) {
  dispatch_floating(value.dtype(), [&]<class T>() {
    dispatch_floating(gradient.dtype(), [&]<class G>() { body.template operator()<T, G>(); });
  });
}

template <class A>
struct AdamWScalars {
  A scale, beta1, beta2, to_m, to_v, unbias_m, unbias_v, eps, lr, decay;
  AdamWScalars(const double* step, const AdamWArgs& args)
      : scale(A(step[step_value::gradient_scale])),
        beta1(A(args.beta1)),
        beta2(A(args.beta2)),
        to_m(A(1 - args.beta1)),
        to_v(A(1 - args.beta2)),
        unbias_m(A(1 / (1 - std::pow(args.beta1, step[step_value::update])))),
        unbias_v(A(1 / (1 - std::pow(args.beta2, step[step_value::update])))),
        eps(A(args.eps)),
        lr(A(step[args.rate])),
        decay(A(args.weight_decay)) {}
};

template <class T, class G, class A>
void adamw_range(int64_t begin, int64_t end, const AdamWScalars<A> s, const G* __restrict gradient, T* __restrict value,
                 bf16* __restrict remainder, A* __restrict m, A* __restrict v) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const A g = s.scale * A(gradient[i]);
    m[i] = s.beta1 * m[i] + s.to_m * g;
    v[i] = s.beta2 * v[i] + s.to_v * g * g;
    const A p = weight(value, remainder, i);
    const A change = m[i] * s.unbias_m / (std::sqrt(v[i] * s.unbias_v) + s.eps) + s.decay * p;
    store_weight(value, remainder, i, p - s.lr * change);
  }
}

template <class A>
struct SgdScalars {
  A scale, momentum, lr, decay;
};

template <bool kMomentum, class T, class G, class A>
void sgd_range(int64_t begin, int64_t end, const SgdScalars<A> s, const G* __restrict gradient, T* __restrict value,
               bf16* __restrict remainder, A* __restrict momentum) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const A p = weight(value, remainder, i);
    A b = s.scale * A(gradient[i]) + s.decay * p;
    if constexpr (kMomentum) momentum[i] = b += s.momentum * momentum[i];
    store_weight(value, remainder, i, p - s.lr * b);
  }
}

}  // namespace

void adamw(Stream& stream, const AdamWTensors& t, const Tensor& step, const AdamWArgs& args) {
  const double* now = step.data<double>();
  if (now[step_value::skip] != 0) return;
  dispatch_update(t.value, t.gradient, [&]<class T, class G>() {
    using A = Accumulator<T>;
    const AdamWScalars<A> scalars(now, args);
    stream.pool().for_ranges(t.value.elements(), kTaskElements, [&](int64_t begin, int64_t end) {
      adamw_range<T, G, A>(begin, end, scalars, t.gradient.data<G>(), t.value.data<T>(),
                           remainder_of<T>(t.value, t.remainder), t.m.data<A>(), t.v.data<A>());
    });
  });
}

void adamw_all(Stream& stream, std::span<const AdamWItem> items, const Tensor&, const Tensor& step,
               const AdamWArgs& args) {
  for (const AdamWItem& item : items)
    cpu::adamw(stream, item.tensors, step, {args.beta1, args.beta2, args.eps, item.weight_decay, args.rate});
}

void sgd(Stream& stream, const SgdTensors& t, const Tensor& step, const SgdArgs& args) {
  const double* now = step.data<double>();
  if (now[step_value::skip] != 0) return;
  dispatch_update(t.value, t.gradient, [&]<class T, class G>() {
    using A = Accumulator<T>;
    const SgdScalars<A> scalars{A(now[step_value::gradient_scale]), A(args.momentum), A(now[args.rate]),
                                A(args.weight_decay)};
    stream.pool().for_ranges(t.value.elements(), kTaskElements, [&](int64_t begin, int64_t end) {
      const auto update = t.momentum.defined() ? &sgd_range<true, T, G, A> : &sgd_range<false, T, G, A>;
      update(begin, end, scalars, t.gradient.data<G>(), t.value.data<T>(), remainder_of<T>(t.value, t.remainder),
             t.momentum.defined() ? t.momentum.data<A>() : nullptr);
    });
  });
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
  now[step_value::skip] = std::isfinite(norm) ? 0 : 1;
  now[step_value::gradient_scale] = max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1;
}

}  // namespace witan::kernels::cpu
