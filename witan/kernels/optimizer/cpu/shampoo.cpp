#include "witan/kernels/optimizer/shampoo.h"

#include <cmath>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/common/cpu/weights.h"

namespace witan::kernels::cpu {
namespace {

bool skipped(const Tensor& step) {
  return step.data<double>()[step_value::skip] != 0;
}

template <class A>
struct MomentScalars {
  A scale, weight, beta1, beta2, to_m, to_v, unbias_m, unbias_v, eps;
  MomentScalars(const double* step, const ShampooMomentArgs& args)
      : scale(A(step[step_value::gradient_scale])),
        weight(A(std::sqrt(args.factor_weight))),
        beta1(A(args.beta1)),
        beta2(A(args.beta2)),
        to_m(A(1 - args.beta1)),
        to_v(A(1 - args.beta2)),
        unbias_m(A(1 / (1 - std::pow(args.beta1, step[step_value::update])))),
        unbias_v(A(1 / (1 - std::pow(args.beta2, step[step_value::update])))),
        eps(A(args.eps)) {}
};

}  // namespace

void shampoo_moments(Stream& stream, const ShampooMoments& t, const Tensor& step, const ShampooMomentArgs& args) {
  dispatch_accumulator(t.outer.dtype(), [&]<class A>() {
    dispatch_floating(t.gradient.dtype(), [&]<class G>() {
      const MomentScalars<A> s(step.data<double>(), args);
      const bool skip = skipped(step);
      const G* gradient = t.gradient.data<G>();
      A *outer = t.outer.data<A>(), *filtered = t.filtered.data<A>();
      A* grafted = t.grafted.defined() ? t.grafted.data<A>() : nullptr;
      A* m = t.m.defined() ? t.m.data<A>() : nullptr;
      A* v = t.v.defined() ? t.v.data<A>() : nullptr;
      stream.pool().for_ranges(t.outer.elements(), kTaskElements, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          if (skip) {
            outer[i] = filtered[i] = 0;
            if (grafted) grafted[i] = 0;
            continue;
          }
          const A g = s.scale * A(gradient[i]);
          outer[i] = s.weight * g;
          if (m) m[i] = s.beta1 * m[i] + s.to_m * g;
          filtered[i] = m ? m[i] * s.unbias_m : g;
          if (!v) continue;
          v[i] = s.beta2 * v[i] + s.to_v * g * g;
          grafted[i] = filtered[i] / (std::sqrt(v[i] * s.unbias_v) + s.eps);
        }
      });
    });
  });
}

void decay_factor(Stream& stream, const Tensor& x, const Tensor& step, double beta) {
  if (skipped(step)) return;
  dispatch_accumulator(x.dtype(), [&]<class A>() {
    A* at = x.data<A>();
    stream.pool().for_ranges(x.elements(), kTaskElements, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) at[i] *= A(beta);
    });
  });
}

void graft(Stream& stream, const Tensor& direction, const Tensor& grafted, const Tensor& sums, const Tensor& step,
           const GraftArgs& args) {
  const int64_t R = direction.size(0), C = direction.size(1);
  const bool before = step.data<double>()[step_value::update] < static_cast<double>(args.start);
  if (!before && !args.scales) return;
  dispatch_accumulator(direction.dtype(), [&]<class A>() {
    A* to = direction.data<A>();
    const A* from = grafted.data<A>();
    auto* of_rows = sums.data<double>();
    const int64_t to_stride = direction.stride(0), from_stride = grafted.stride(0);
    const auto for_rows_of_both = [&](const auto& body) {
      stream.pool().for_ranges(R, kTaskElements / C, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) body(r, to + r * to_stride, from + r * from_stride);
      });
    };
    if (before) return for_rows_of_both([&](int64_t, A* y, const A* x) { std::copy_n(x, C, y); });
    for_rows_of_both([&](int64_t r, const A* y, const A* x) {
      double own = 0, its = 0;
      for (int64_t c = 0; c < C; ++c) {
        own += static_cast<double>(y[c]) * static_cast<double>(y[c]);
        its += static_cast<double>(x[c]) * static_cast<double>(x[c]);
      }
      of_rows[2 * r] = own;
      of_rows[2 * r + 1] = its;
    });
    double own = 0, its = 0;
    for (int64_t r = 0; r < R; ++r) {
      own += of_rows[2 * r];
      its += of_rows[2 * r + 1];
    }
    const A factor = A(std::sqrt(its) / (std::sqrt(own) + 1e-16));
    for_rows_of_both([&](int64_t, A* y, const A*) {
      for (int64_t c = 0; c < C; ++c) y[c] *= factor;
    });
  });
}

void apply_direction(Stream& stream, const DirectedTensors& t, const Tensor& step, const DirectedArgs& args) {
  if (skipped(step) || step.data<double>()[step_value::update] < static_cast<double>(args.first)) return;
  dispatch_floating(t.value.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const double* now = step.data<double>();
    const A lr = A(now[args.rate]), decay = A(args.weight_decay * now[step_value::weight_decay]);
    T* value = t.value.data<T>();
    Remainder<T>* remainder = remainder_of<T>(t.value, t.remainder);
    const A* direction = t.direction.data<A>();
    stream.pool().for_ranges(t.value.elements(), kTaskElements, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const A p = weight(value, remainder, i);
        store_weight(value, remainder, i, p - lr * (direction[i] + decay * p));
      }
    });
  });
}

}  // namespace witan::kernels::cpu
