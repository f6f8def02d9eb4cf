#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/common/cpu/store.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan::kernels::cpu {

void clamp_forward(Stream& stream, const Tensor& y, const Tensor& x, double bound) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().for_ranges(x.elements(), kTaskElements, [&, most = A(bound)](int64_t begin, int64_t end) {
      const T* in = x.data<T>();
      T* out = y.data<T>();
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) store(out[i], std::min(std::max(A(in[i]), -most), most));
    });
  });
}

void clamp_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x, double bound) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().for_ranges(x.elements(), kTaskElements, [&, most = A(bound)](int64_t begin, int64_t end) {
      const T *in = x.data<T>(), *from = dy.data<T>();
      T* to = dx.data<T>();
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) store(to[i], A(in[i]) >= -most && A(in[i]) <= most ? A(from[i]) : A(0));
    });
  });
}

}  // namespace witan::kernels::cpu
