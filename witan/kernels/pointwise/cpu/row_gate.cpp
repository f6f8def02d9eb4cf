#include "witan/kernels/common/cpu/math.h"
#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/common/cpu/store.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan::kernels::cpu {

void row_gate_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& gate) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_rows(stream, x, [&, D = x.shape().last()](int64_t t) {
      const T* in = x.data<T>() + t * D;
      T* out = y.data<T>() + t * D;
      const A open = fast_sigmoid(A(gate.data<T>()[t]));
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) store(out[d], open * A(in[d]));
    });
  });
}

void row_gate_backward(Stream& stream, const Tensor& dx, const Tensor& dgate, const Tensor& dy, const Tensor& x,
                       const Tensor& gate) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_rows(stream, x, [&, D = x.shape().last()](int64_t t) {
      const T *in = x.data<T>() + t * D, *g = dy.data<T>() + t * D;
      T* out = dx.data<T>() + t * D;
      const A open = fast_sigmoid(A(gate.data<T>()[t]));
      A dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t d = 0; d < D; ++d) {
        dot += A(g[d]) * A(in[d]);
        store(out[d], open * A(g[d]));
      }
      dgate.data<T>()[t] = T(open * (A(1) - open) * dot);
    });
  });
}

}  // namespace witan::kernels::cpu
