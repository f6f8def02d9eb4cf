#include "witan/kernels/norm/magnitude.h"

#include <algorithm>
#include <cmath>

#include "witan/kernels/common/cpu/rows.h"

namespace witan::kernels::cpu {

void low_rank_squares(Stream& stream, const Tensor& squares, const Tensor& base, const Tensor& p, const Tensor& g,
                      const Tensor& b, double scale) {
  dispatch_floating(b.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_rows(stream, b, [&, r = b.size(1), s = A(scale)](int64_t n) {
      const T* own = b.data<T>() + n * r;
      const A *with_base = p.data<A>() + n * r, *products = g.data<A>();
      A sum = 0;
      for (int64_t j = 0; j < r; ++j) {
        A inner = 0;
        for (int64_t i = 0; i < r; ++i) inner += A(own[i]) * products[i * r + j];
        sum += A(own[j]) * (A(2) * s * with_base[j] + s * s * inner);
      }
      squares.data<A>()[n] = std::max(A(0), base.data<A>()[n] + sum);
    });
  });
}

void magnitude_factors(Stream&, const Tensor& factors, const Tensor& inverses, const Tensor& change, const Tensor& base,
                       const Tensor& squares) {
  dispatch_floating(change.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for (int64_t n = 0; n < change.elements(); ++n) {
      const A norm = std::sqrt(squares.data<A>()[n]);
      factors.data<A>()[n] = norm > 0 ? (std::sqrt(base.data<A>()[n]) + A(change.data<T>()[n])) / norm : A(1);
      inverses.data<A>()[n] = norm > 0 ? A(1) / norm : A(0);
    }
  });
}

void scale_columns(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& factors) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_rows(stream, x, [&, N = x.shape().last(), factor = factors.data<A>()](int64_t t) {
      const T* in = x.data<T>() + t * N;
      T* out = y.data<T>() + t * N;
#pragma omp simd
      for (int64_t n = 0; n < N; ++n) store(out[n], A(in[n]) * factor[n]);
    });
  });
}

}  // namespace witan::kernels::cpu
