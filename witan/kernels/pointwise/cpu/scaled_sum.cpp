#include <algorithm>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/common/cpu/store.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan::kernels::cpu {
namespace {

template <class T>
Accumulator<T> factor_of(const Tensor& w) {
  return w.defined() ? Accumulator<T>(*w.data<T>()) : Accumulator<T>(1);
}

}  // namespace

void scaled_sum(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& wa, const Tensor& b, const Tensor& wb) {
  dispatch_floating(y.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const A left = factor_of<T>(wa), right = factor_of<T>(wb);
    stream.pool().for_ranges(y.elements(), kTaskElements, [&](int64_t begin, int64_t end) {
      const T *first = a.data<T>(), *second = b.defined() ? b.data<T>() : nullptr;
      T* out = y.data<T>();
      if (second == nullptr) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) store(out[i], left * A(first[i]));
      } else {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) store(out[i], left * A(first[i]) + right * A(second[i]));
      }
    });
  });
}

void scaled_sum_backward(Stream& stream, const Tensor& dx, const Tensor& dw, Write write, const Tensor& partials,
                         const Tensor& dy, const Tensor& x, const Tensor& w) {
  double* partial = partials.data<double>();
  dispatch_floating(dy.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const A factor = factor_of<T>(w);
    const int64_t n = dy.elements(), blocks = partials.elements();
    stream.pool().for_ranges(blocks, kTaskElements / kSumBlock, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const T *g = dy.data<T>(), *in = x.data<T>();
        T* out = dx.defined() ? dx.data<T>() : nullptr;
        const int64_t first = block * kSumBlock, last = std::min(first + kSumBlock, n);
        A total = 0;
#pragma omp simd reduction(+ : total)
        for (int64_t i = first; i < last; ++i) total += A(g[i]) * A(in[i]);
        partial[block] = static_cast<double>(total);
        if (out == nullptr) continue;
#pragma omp simd
        for (int64_t i = first; i < last; ++i) store(out[i], factor * A(g[i]));
      }
    });
    double total = 0;
    for (int64_t block = 0; block < blocks; ++block) total += partial[block];
    dispatch_floating(dw.dtype(), [&]<class W>() {
      const double before = write == Write::accumulate ? static_cast<double>(*dw.data<W>()) : 0;
      *dw.data<W>() = W(Accumulator<W>(before + total));
    });
  });
}

}  // namespace witan::kernels::cpu
