// A row is one task's business; column sums (weight gradients) are cut by columns, so no two tasks meet.
#include "witan/kernels/norm.h"

#include <cmath>

#include "witan/kernels/cpu/rows.h"
#include "witan/kernels/cpu/store.h"

namespace witan::kernels::cpu {

void rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& r, const Tensor& x, const Tensor& w, double eps) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const T* weight = w.data<T>();
    A* scale = r.data<A>();
    for_rows(stream, x, [&, D = x.shape().last()](int64_t t) {
      const T* in = x.data<T>() + t * D;
      T* out = y.data<T>() + t * D;
      A squares = 0;
#pragma omp simd reduction(+ : squares)
      for (int64_t d = 0; d < D; ++d) squares += A(in[d]) * A(in[d]);
      const A s = scale[t] = A(1) / std::sqrt(squares / A(D) + A(eps));
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) store(out[d], A(in[d]) * s * A(weight[d]));
    });
  });
}

void rmsnorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& w,
                            const Tensor& r) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const T* weight = w.data<T>();
    for_rows(stream, x, [&, D = x.shape().last()](int64_t t) {
      const T *in = x.data<T>() + t * D, *g = dy.data<T>() + t * D;
      T* out = dx.data<T>() + t * D;
      const A s = r.data<A>()[t];
      A dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t d = 0; d < D; ++d) dot += A(weight[d]) * A(g[d]) * A(in[d]);
      const A pull = dot / A(D) * s * s;
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) store(out[d], s * (A(weight[d]) * A(g[d]) - A(in[d]) * pull));
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

void layernorm_forward(Stream& stream, const Tensor& y, const Tensor& mean, const Tensor& r, const Tensor& x,
                       const Tensor& w, const Tensor& b, double eps) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const T* weight = w.data<T>();
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
      for (int64_t d = 0; d < D; ++d) store(out[d], (A(in[d]) - m) * s * A(weight[d]) + (bias ? A(bias[d]) : A(0)));
    });
  });
}

void layernorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& w,
                              const Tensor& mean, const Tensor& r) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const T* weight = w.data<T>();
    for_rows(stream, x, [&, D = x.shape().last()](int64_t t) {
      const T *in = x.data<T>() + t * D, *g = dy.data<T>() + t * D;
      T* out = dx.data<T>() + t * D;
      const A m = mean.data<A>()[t], s = r.data<A>()[t];
      A sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
      for (int64_t d = 0; d < D; ++d) {
        sum += A(weight[d]) * A(g[d]);
        dot += A(weight[d]) * A(g[d]) * (A(in[d]) - m) * s;
      }
      const A shift = sum / A(D), pull = dot / A(D);
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) store(out[d], s * (A(weight[d]) * A(g[d]) - shift - (A(in[d]) - m) * s * pull));
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
