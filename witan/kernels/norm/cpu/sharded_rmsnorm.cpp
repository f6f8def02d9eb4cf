#include <cmath>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/norm/norm.h"

namespace witan::kernels::cpu {

void sharded_rmsnorm_squares(Stream& stream, const Tensor& sums, const Tensor& x) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_rows(stream, x, [&, D = x.shape().last()](int64_t t) {
      const T* in = x.data<T>() + t * D;
      A squares = 0;
#pragma omp simd reduction(+ : squares)
      for (int64_t d = 0; d < D; ++d) squares += A(in[d]) * A(in[d]);
      sums.data<A>()[t] = squares;
    });
  });
}

void sharded_rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& r, const Tensor& x, const NormWeight& w,
                             const Tensor& sums, int64_t width, double eps) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const T* weight = w.values.data<T>();
    const A added = w.added<A>();
    for_rows(stream, x, [&, D = x.shape().last()](int64_t t) {
      const T* in = x.data<T>() + t * D;
      T* out = y.data<T>() + t * D;
      const A s = r.data<A>()[t] = A(1) / std::sqrt(sums.data<A>()[t] / A(width) + A(eps));
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) store(out[d], A(in[d]) * s * (A(weight[d]) + added));
    });
  });
}

void sharded_rmsnorm_products(Stream& stream, const Tensor& sums, const Tensor& dy, const Tensor& x,
                              const NormWeight& w) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const T* weight = w.values.data<T>();
    const A added = w.added<A>();
    for_rows(stream, x, [&, D = x.shape().last()](int64_t t) {
      const T *in = x.data<T>() + t * D, *g = dy.data<T>() + t * D;
      A dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t d = 0; d < D; ++d) dot += (A(weight[d]) + added) * A(g[d]) * A(in[d]);
      sums.data<A>()[t] = dot;
    });
  });
}

void sharded_rmsnorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x,
                                    const NormWeight& w, const Tensor& r, const Tensor& sums, int64_t width) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const T* weight = w.values.data<T>();
    const A added = w.added<A>();
    for_rows(stream, x, [&, D = x.shape().last()](int64_t t) {
      const T *in = x.data<T>() + t * D, *g = dy.data<T>() + t * D;
      T* out = dx.data<T>() + t * D;
      const A s = r.data<A>()[t], pull = sums.data<A>()[t] / A(width) * s * s;
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) store(out[d], s * ((A(weight[d]) + added) * A(g[d]) - A(in[d]) * pull));
    });
  });
}

}  // namespace witan::kernels::cpu
