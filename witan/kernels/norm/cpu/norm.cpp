// Each row is one task. Column sums (weight gradients) are divided by columns, so that no two tasks write the same sum.
#include "witan/kernels/norm/norm.h"

#include <cmath>
#include <vector>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan::kernels::cpu {
namespace {

// Not inlined, so that kernels with and without a residual give the same bits.
template <class T>
[[gnu::noinline]] void rmsnorm_backward_row(T* dx, const T* dy, const T* x, const T* w, Accumulator<T> added,
                                            Accumulator<T> r, int64_t D) {
  using A = Accumulator<T>;
  A dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t d = 0; d < D; ++d) dot += (A(w[d]) + added) * A(dy[d]) * A(x[d]);
  const A pull = dot / A(D) * r * r;
#pragma omp simd
  for (int64_t d = 0; d < D; ++d) store(dx[d], r * ((A(w[d]) + added) * A(dy[d]) - A(x[d]) * pull));
}

template <class T>
[[gnu::noinline]] void layernorm_backward_row(T* dx, const T* dy, const T* x, const T* w, Accumulator<T> added,
                                              Accumulator<T> mean, Accumulator<T> r, int64_t D) {
  using A = Accumulator<T>;
  A sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
  for (int64_t d = 0; d < D; ++d) {
    sum += (A(w[d]) + added) * A(dy[d]);
    dot += (A(w[d]) + added) * A(dy[d]) * (A(x[d]) - mean) * r;
  }
  const A shift = sum / A(D), pull = dot / A(D);
#pragma omp simd
  for (int64_t d = 0; d < D; ++d)
    store(dx[d], r * ((A(w[d]) + added) * A(dy[d]) - shift - (A(x[d]) - mean) * r * pull));
}

// Calls normed(t, row) to write the norm's share of a row's gradient, and adds dsum's row, if any, to the rounded
// share.
template <class T, class Normed>
void write_input_gradient(Stream& stream, const Tensor& dx, const Tensor& dsum, const Normed& normed) {
  if (!dsum.defined())
    return for_rows(stream, dx, [&, D = dx.shape().last()](int64_t t) { normed(t, dx.data<T>() + t * D); });
  using A = Accumulator<T>;
  const auto [rows, columns] = dx.shape().as_rows();
  const int64_t grain = kTaskElements / std::max<int64_t>(columns, 1);
  stream.pool().for_ranges(rows, grain, [&, D = columns](int64_t begin, int64_t end) {
    std::vector<T> share(static_cast<size_t>(D));
    for (int64_t t = begin; t < end; ++t) {
      normed(t, share.data());
      const T *before = dsum.data<T>() + t * D, *more = share.data();
      T* out = dx.data<T>() + t * D;
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) store(out[d], A(before[d]) + A(more[d]));
    }
  });
}

}  // namespace

void rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& r, const Tensor& x, const NormWeight& w,
                     double eps) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const T* weight = w.values.data<T>();
    const A added = w.added<A>();
    A* scale = r.data<A>();
    for_rows(stream, x, [&, D = x.shape().last()](int64_t t) {
      const T* in = x.data<T>() + t * D;
      T* out = y.data<T>() + t * D;
      A squares = 0;
#pragma omp simd reduction(+ : squares)
      for (int64_t d = 0; d < D; ++d) squares += A(in[d]) * A(in[d]);
      const A s = scale[t] = A(1) / std::sqrt(squares / A(D) + A(eps));
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) store(out[d], A(in[d]) * s * (A(weight[d]) + added));
    });
  });
}

void rmsnorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x, const NormWeight& w,
                            const Tensor& r) {
  cpu::add_rmsnorm_backward_input(stream, dx, {}, dy, x, w, r);
}

void add_rmsnorm_forward(Stream& stream, const Tensor& sum, const Tensor& y, const Tensor& r, const Tensor& a,
                         const Tensor& b, const NormWeight& w, double eps) {
  add(stream, sum, a, b);
  cpu::rmsnorm_forward(stream, y, r, sum, w, eps);
}

void add_rmsnorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dsum, const Tensor& dy,
                                const Tensor& sum, const NormWeight& w, const Tensor& r) {
  dispatch_floating(sum.dtype(), [&]<class T>() {
    write_input_gradient<T>(stream, dx, dsum, [&, D = sum.shape().last()](int64_t t, T* out) {
      rmsnorm_backward_row(out, dy.data<T>() + t * D, sum.data<T>() + t * D, w.values.data<T>(),
                           w.added<Accumulator<T>>(), r.data<Accumulator<T>>()[t], D);
    });
  });
}

void rmsnorm_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                             const Tensor& r) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const A* s = r.data<A>();
    sum_over_rows<T, A>(stream, dw, write, x.shape(), [&](int64_t t, int64_t begin, int64_t end, A* sums) {
      const T *in = x.data<T>() + t * x.shape().last(), *g = dy.data<T>() + t * x.shape().last();
#pragma omp simd
      for (int64_t d = begin; d < end; ++d) sums[d - begin] += A(g[d]) * A(in[d]) * s[t];
    });
  });
}

void rmsnorm_backward(Stream& stream, const Tensor& dx, const Tensor& dw, Write write, const Tensor& dsum,
                      const Tensor& dy, const Tensor& x, const NormWeight& w, const Tensor& r) {
  rmsnorm_backward_weight(stream, dw, write, dy, x, r);
  cpu::add_rmsnorm_backward_input(stream, dx, dsum, dy, x, w, r);
}

void layernorm_forward(Stream& stream, const Tensor& y, const Tensor& mean, const Tensor& r, const Tensor& x,
                       const NormWeight& w, const Tensor& b, double eps) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const T* weight = w.values.data<T>();
    const A added = w.added<A>();
    const T* bias = b.defined() ? b.data<T>() : nullptr;
    for_rows(stream, x, [&, D = x.shape().last()](int64_t t) {
      const T* in = x.data<T>() + t * D;
      T* out = y.data<T>() + t * D;
      A sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t d = 0; d < D; ++d) sum += A(in[d]);
      const A m = mean.data<A>()[t] = sum / A(D);
#pragma omp simd reduction(+ : squares)
      for (int64_t d = 0; d < D; ++d) squares += (A(in[d]) - m) * (A(in[d]) - m);
      const A s = r.data<A>()[t] = A(1) / std::sqrt(squares / A(D) + A(eps));
#pragma omp simd
      for (int64_t d = 0; d < D; ++d)
        store(out[d], (A(in[d]) - m) * s * (A(weight[d]) + added) + (bias ? A(bias[d]) : A(0)));
    });
  });
}

void layernorm_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                               const Tensor& mean, const Tensor& r) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const A *m = mean.data<A>(), *s = r.data<A>();
    const int64_t D = x.shape().last();
    sum_over_rows<T, A>(stream, dw, write, x.shape(), [&](int64_t t, int64_t begin, int64_t end, A* sums) {
      const T *in = x.data<T>() + t * D, *g = dy.data<T>() + t * D;
#pragma omp simd
      for (int64_t d = begin; d < end; ++d) sums[d - begin] += A(g[d]) * (A(in[d]) - m[t]) * s[t];
    });
  });
}

void add_layernorm_forward(Stream& stream, const Tensor& sum, const Tensor& y, const Tensor& mean, const Tensor& r,
                           const Tensor& a, const Tensor& b, const NormWeight& w, const Tensor& bias, double eps) {
  add(stream, sum, a, b);
  cpu::layernorm_forward(stream, y, mean, r, sum, w, bias, eps);
}

void layernorm_backward(Stream& stream, const Tensor& dx, const NormGradients& to, const Tensor& dsum, const Tensor& dy,
                        const Tensor& x, const NormWeight& w, const Tensor& mean, const Tensor& r) {
  if (to.dw.defined()) layernorm_backward_weight(stream, to.dw, to.write_dw, dy, x, mean, r);
  if (to.db.defined()) bias_backward(stream, to.db, to.write_db, dy);
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    write_input_gradient<T>(stream, dx, dsum, [&, D = x.shape().last()](int64_t t, T* out) {
      layernorm_backward_row(out, dy.data<T>() + t * D, x.data<T>() + t * D, w.values.data<T>(), w.added<A>(),
                             mean.data<A>()[t], r.data<A>()[t], D);
    });
  });
}

void bias_backward(Stream& stream, const Tensor& db, Write write, const Tensor& dy) {
  dispatch_floating(dy.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    sum_over_rows<T, A>(stream, db, write, dy.shape(), [&](int64_t t, int64_t begin, int64_t end, A* sums) {
      const T* g = dy.data<T>() + t * dy.shape().last();
#pragma omp simd
      for (int64_t d = begin; d < end; ++d) sums[d - begin] += A(g[d]);
    });
  });
}

}  // namespace witan::kernels::cpu
