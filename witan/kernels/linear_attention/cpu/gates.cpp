// The pointwise work around the gated delta rule: its decay and writing strength, and the norm of its output.
#include <cmath>

#include "witan/kernels/common/cpu/math.h"
#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/linear_attention/gated_delta.h"
#include "witan/kernels/pointwise/rules.h"

namespace witan::kernels::cpu {
namespace {

// ln(1 + e^x) without overflow
template <class A>
A softplus(A x) {
  return x > A(20) ? x : std::log1p(std::exp(x));
}

template <class A>
A plain_sigmoid(A x) {
  return A(1) / (A(1) + std::exp(-x));
}

}  // namespace

void delta_gates_forward(Stream& stream, const Tensor& g, const Tensor& beta, const Tensor& a, const Tensor& b,
                         const Tensor& A, const Tensor& bias) {
  dispatch_floating(a.dtype(), [&]<class T>() {
    using Acc = Accumulator<T>;
    const int64_t H = b.shape().last(), C = a.shape().last(), of_head = C / H;
    for_rows(stream, a, [&](int64_t t) {
      for (int64_t c = 0; c < C; ++c) {
        const Acc x = Acc(a.data<T>()[t * C + c]) + Acc(bias.data<Acc>()[c]);
        g.data<Acc>()[t * C + c] = -std::exp(Acc(A.data<Acc>()[c / of_head])) * softplus(x);
      }
      for (int64_t at = t * H; at < (t + 1) * H; ++at) beta.data<Acc>()[at] = plain_sigmoid(Acc(b.data<T>()[at]));
    });
  });
}

void delta_gates_backward(Stream& stream, const DeltaGateGradients& to, const Tensor& dg, const Tensor& dbeta,
                          const Tensor& a, const Tensor& b, const Tensor& A, const Tensor& bias) {
  dispatch_floating(a.dtype(), [&]<class T>() {
    using Acc = Accumulator<T>;
    const int64_t H = b.shape().last(), C = a.shape().last(), of_head = C / H;
    const auto decay_input = [&](int64_t t, int64_t c) {
      return Acc(a.data<T>()[t * C + c]) + Acc(bias.data<Acc>()[c]);
    };
    const auto rate = [&](int64_t c) { return -std::exp(Acc(A.data<Acc>()[c / of_head])); };
    const auto of_input = [&](int64_t t, int64_t c) {
      return dg.data<Acc>()[t * C + c] * rate(c) * plain_sigmoid(decay_input(t, c));
    };
    for_rows(stream, a, [&](int64_t t) {
      for (int64_t c = 0; c < C; ++c) to.da.data<T>()[t * C + c] = T(of_input(t, c));
      for (int64_t at = t * H; at < (t + 1) * H; ++at) {
        const Acc open = plain_sigmoid(Acc(b.data<T>()[at]));
        to.db.data<T>()[at] = T(dbeta.data<Acc>()[at] * open * (Acc(1) - open));
      }
    });
    const auto sum = [&](const Tensor& into, Write write, const Shape& rows, const auto& term) {
      if (!into.defined()) return;
      sum_over_rows<T, Acc>(stream, into, write, rows, [&](int64_t t, int64_t begin, int64_t end, Acc* sums) {
        for (int64_t at = begin; at < end; ++at) sums[at - begin] += term(t, at);
      });
    };
    sum(to.dA, to.write_A, b.shape(), [&](int64_t t, int64_t h) {
      Acc of_channels = 0;
      for (int64_t c = h * of_head; c < (h + 1) * of_head; ++c)
        of_channels += dg.data<Acc>()[t * C + c] * rate(c) * softplus(decay_input(t, c));
      return of_channels;
    });
    sum(to.dbias, to.write_bias, a.shape(), of_input);
  });
}

void gated_rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& r, const Tensor& x, const Tensor& z,
                           const Tensor& w, double eps) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const A* weight = w.data<A>();
    for_rows(stream, x, [&, D = x.shape().last()](int64_t t) {
      const T *in = x.data<T>() + t * D, *gate = z.data<T>() + t * D;
      T* out = y.data<T>() + t * D;
      A squares = 0;
#pragma omp simd reduction(+ : squares)
      for (int64_t d = 0; d < D; ++d) squares += A(in[d]) * A(in[d]);
      const A s = r.data<A>()[t] = A(1) / std::sqrt(squares / A(D) + A(eps));
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) store(out[d], A(in[d]) * s * weight[d] * rules::Silu<Math>::at(A(gate[d])).value);
    });
  });
}

void gated_rmsnorm_backward(Stream& stream, const GatedNormGradients& to, const Tensor& dy, const Tensor& x,
                            const Tensor& z, const Tensor& w, const Tensor& r) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const A* weight = w.data<A>();
    const A* scale = r.data<A>();
    if (to.dw.defined())
      sum_over_rows<T, A>(stream, to.dw, to.write, x.shape(), [&](int64_t t, int64_t begin, int64_t end, A* sums) {
        const int64_t at = t * x.shape().last();
        const T *in = x.data<T>() + at, *gate = z.data<T>() + at, *out = dy.data<T>() + at;
#pragma omp simd
        for (int64_t d = begin; d < end; ++d)
          sums[d - begin] += A(out[d]) * rules::Silu<Math>::at(A(gate[d])).value * A(in[d]) * scale[t];
      });
    for_rows(stream, x, [&, D = x.shape().last()](int64_t t) {
      const T *in = x.data<T>() + t * D, *gate = z.data<T>() + t * D, *out = dy.data<T>() + t * D;
      T *dx = to.dx.data<T>() + t * D, *dz = to.dz.data<T>() + t * D;
      const A s = scale[t];
      A dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t d = 0; d < D; ++d)
        dot += weight[d] * A(out[d]) * rules::Silu<Math>::at(A(gate[d])).value * A(in[d]) * s;
      const A pull = dot / A(D);
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) {
        const auto open = rules::Silu<Math>::at(A(gate[d]));
        const A n = A(in[d]) * s, weighted = weight[d] * A(out[d]);
        store(dx[d], s * (weighted * open.value - n * pull));
        store(dz[d], weighted * n * open.slope);
      }
    });
  });
}

}  // namespace witan::kernels::cpu
