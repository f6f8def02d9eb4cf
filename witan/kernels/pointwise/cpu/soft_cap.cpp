#include "witan/kernels/common/cpu/math.h"
#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/common/cpu/store.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan::kernels::cpu {

// tanh(u) = 2 sigmoid(2u) - 1
void soft_cap_forward(Stream& stream, const Tensor& y, const Tensor& x, double scale, double cap) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().for_ranges(x.elements(), kTaskElements, [&](int64_t begin, int64_t end) {
      const T* in = x.data<T>();
      T* out = y.data<T>();
      const A inner = A(2 * scale / cap), bound = A(cap);
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) store(out[i], bound * (A(2) * fast_sigmoid(inner * A(in[i])) - A(1)));
    });
  });
}

void soft_cap_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& y, double scale, double cap) {
  dispatch_floating(y.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().for_ranges(y.elements(), kTaskElements, [&](int64_t begin, int64_t end) {
      const T *g = dy.data<T>(), *capped = y.data<T>();
      T* out = dx.data<T>();
      const A slope = A(scale), share = A(1 / cap);
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        const A tangent = A(capped[i]) * share;
        store(out[i], slope * (A(1) - tangent * tangent) * A(g[i]));
      }
    });
  });
}

}  // namespace witan::kernels::cpu
