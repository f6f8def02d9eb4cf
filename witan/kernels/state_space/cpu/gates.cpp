// The pointwise work around the recurrence: its steps and decays, and the norm of its output.
#include <cmath>

#include "witan/kernels/common/cpu/math.h"
#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/pointwise/rules.h"
#include "witan/kernels/state_space/ssd.h"

namespace witan::kernels::cpu {
namespace {

// dt before its clamp, and its derivative.
template <class A>
struct SsdStep {
  A value, slope;
  explicit SsdStep(A x) : value(x > A(20) ? x : std::log1p(std::exp(x))), slope(A(1) / (A(1) + std::exp(-x))) {}
};

}  // namespace

void ssd_gates_forward(Stream& stream, const Tensor& dt, const Tensor& a, const Tensor& raw, const Tensor& A,
                       const Tensor& bias, double least) {
  dispatch_floating(raw.dtype(), [&]<class T>() {
    using Acc = Accumulator<T>;
    for_rows(stream, raw, [&, H = raw.shape().last()](int64_t t) {
      for (int64_t h = 0; h < H; ++h) {
        const int64_t at = t * H + h;
        const SsdStep<Acc> step(Acc(raw.data<T>()[at]) + bias.data<Acc>()[h]);
        dt.data<Acc>()[at] = std::max(step.value, Acc(least));
        a.data<Acc>()[at] = -std::exp(A.data<Acc>()[h]) * dt.data<Acc>()[at];
      }
    });
  });
}

void ssd_gates_backward(Stream& stream, const SsdGateGradients& to, const Tensor& ddt, const Tensor& da,
                        const Tensor& raw, const Tensor& A, const Tensor& bias, double least) {
  dispatch_floating(raw.dtype(), [&]<class T>() {
    using Acc = Accumulator<T>;
    const int64_t H = raw.shape().last();
    const auto step_of = [&](int64_t t, int64_t h) {
      return SsdStep<Acc>(Acc(raw.data<T>()[t * H + h]) + bias.data<Acc>()[h]);
    };
    const auto rate = [&](int64_t h) { return -std::exp(A.data<Acc>()[h]); };
    const auto of_input = [&](int64_t t, int64_t h) {
      const SsdStep<Acc> step = step_of(t, h);
      const int64_t at = t * H + h;
      return step.value < Acc(least) ? Acc(0) : (ddt.data<Acc>()[at] + rate(h) * da.data<Acc>()[at]) * step.slope;
    };
    for_rows(stream, raw, [&](int64_t t) {
      for (int64_t h = 0; h < H; ++h) to.draw.data<T>()[t * H + h] = T(of_input(t, h));
    });
    const auto sum = [&](const Tensor& into, Write write, const auto& term) {
      if (!into.defined()) return;
      sum_over_rows<T, Acc>(stream, into, write, raw.shape(), [&](int64_t t, int64_t begin, int64_t end, Acc* sums) {
        for (int64_t h = begin; h < end; ++h) sums[h - begin] += term(t, h);
      });
    };
    sum(to.dA, to.write_A, [&](int64_t t, int64_t h) {
      return da.data<Acc>()[t * H + h] * rate(h) * std::max(step_of(t, h).value, Acc(least));
    });
    sum(to.dbias, to.write_bias, of_input);
  });
}

void gated_group_rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& r, const Tensor& x, const Tensor& z,
                                 const Tensor& w, double eps) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const int64_t D = x.shape().last(), groups = r.shape().last(), of_group = D / groups;
    for_rows(stream, x, [&](int64_t t) {
      for (int64_t group = 0; group < groups; ++group) {
        const int64_t first = group * of_group;
        const T *in = x.data<T>() + t * D + first, *gate = z.data<T>() + t * D + first;
        const A* const weight = w.data<A>() + first;
        T* const out = y.data<T>() + t * D + first;
        A squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int64_t d = 0; d < of_group; ++d) {
          const A u = A(in[d]) * rules::Silu<Math>::at(A(gate[d])).value;
          squares += u * u;
        }
        const A s = r.data<A>()[t * groups + group] = A(1) / std::sqrt(squares / A(of_group) + A(eps));
#pragma omp simd
        for (int64_t d = 0; d < of_group; ++d)
          store(out[d], A(in[d]) * rules::Silu<Math>::at(A(gate[d])).value * s * weight[d]);
      }
    });
  });
}

void gated_group_rmsnorm_backward(Stream& stream, const GatedGroupNormGradients& to, const Tensor& dy, const Tensor& x,
                                  const Tensor& z, const Tensor& w, const Tensor& r) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const int64_t D = x.shape().last(), groups = r.shape().last(), of_group = D / groups;
    if (to.dw.defined())
      sum_over_rows<T, A>(stream, to.dw, to.write, x.shape(), [&](int64_t t, int64_t begin, int64_t end, A* sums) {
        const T *in = x.data<T>() + t * D, *gate = z.data<T>() + t * D, *out = dy.data<T>() + t * D;
        for (int64_t d = begin; d < end; ++d)
          sums[d - begin] +=
              A(out[d]) * A(in[d]) * rules::Silu<Math>::at(A(gate[d])).value * r.data<A>()[t * groups + d / of_group];
      });
    for_rows(stream, x, [&](int64_t t) {
      for (int64_t group = 0; group < groups; ++group) {
        const int64_t at = t * D + group * of_group;
        const T *in = x.data<T>() + at, *gate = z.data<T>() + at, *out = dy.data<T>() + at;
        T *dx = to.dx.data<T>() + at, *dz = to.dz.data<T>() + at;
        const A* const weight = w.data<A>() + group * of_group;
        const A s = r.data<A>()[t * groups + group];
        A dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t d = 0; d < of_group; ++d)
          dot += weight[d] * A(out[d]) * A(in[d]) * rules::Silu<Math>::at(A(gate[d])).value * s;
        const A pull = dot / A(of_group);
#pragma omp simd
        for (int64_t d = 0; d < of_group; ++d) {
          const auto open = rules::Silu<Math>::at(A(gate[d]));
          const A du = s * (weight[d] * A(out[d]) - A(in[d]) * open.value * s * pull);
          store(dx[d], du * open.value);
          store(dz[d], du * A(in[d]) * open.slope);
        }
      }
    });
  });
}

}  // namespace witan::kernels::cpu
