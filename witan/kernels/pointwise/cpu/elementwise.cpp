#include "witan/kernels/pointwise/elementwise.h"

#include <algorithm>
#include <functional>

#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/common/cpu/store.h"

namespace witan::kernels::cpu {

void add(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b) {
  if (y.dtype() == DType::i64) {
    std::ranges::transform(a.span<int64_t>(), b.span<int64_t>(), y.span<int64_t>().begin(), std::plus());
    return;
  }
  dispatch_floating(y.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().for_ranges(y.elements(), kTaskElements, [&](int64_t begin, int64_t end) {
      const T *left = a.data<T>(), *right = b.data<T>();
      T* out = y.data<T>();
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) store(out[i], A(left[i]) + A(right[i]));
    });
  });
}

void scale(Stream& stream, const Tensor& y, Write write, const Tensor& x, double alpha) {
  dispatch_floating(y.dtype(), [&]<class Y>() {
    dispatch_floating(x.dtype(), [&]<class X>() {
      using A = Accumulator<Y>;
      stream.pool().for_ranges(y.elements(), kTaskElements, [&, factor = A(alpha)](int64_t begin, int64_t end) {
        const X* in = x.data<X>();
        Y* out = y.data<Y>();
        if (write == Write::overwrite) {
#pragma omp simd
          for (int64_t i = begin; i < end; ++i) store(out[i], factor * A(in[i]));
        } else {
#pragma omp simd
          for (int64_t i = begin; i < end; ++i) store(out[i], A(out[i]) + factor * A(in[i]));
        }
      });
    });
  });
}

void accumulate(Stream& stream, const Tensor& to, Write write, const Tensor& from) {
  scale(stream, to, write, from, 1);
}

void cast(Stream& stream, const Tensor& y, const Tensor& x) {
  dispatch_floating(y.dtype(), [&]<class Y>() {
    dispatch_floating(x.dtype(), [&]<class X>() {
      stream.pool().for_ranges(y.elements(), kTaskElements, [&](int64_t begin, int64_t end) {
        const X* in = x.data<X>();
        Y* out = y.data<Y>();
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) store(out[i], Accumulator<X>(in[i]));
      });
    });
  });
}

void sum(Stream& stream, const Tensor& y, const Tensor& partials, const Tensor& x) {
  double* partial = partials.data<double>();
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const int64_t n = x.elements(), blocks = partials.elements();
    stream.pool().for_ranges(blocks, kTaskElements / kSumBlock, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const T* in = x.data<T>();
        A total = 0;
#pragma omp simd reduction(+ : total)
        for (int64_t i = block * kSumBlock; i < std::min((block + 1) * kSumBlock, n); ++i) total += A(in[i]);
        partial[block] = static_cast<double>(total);
      }
    });
    double total = 0;
    for (int64_t block = 0; block < blocks; ++block) total += partial[block];
    *y.data<A>() = A(total);
  });
}

void broadcast(Stream& stream, const Tensor& y, const Tensor& x) {
  dispatch_floating(y.dtype(), [&]<class Y>() {
    dispatch_floating(x.dtype(), [&]<class X>() {
      const Y value = Y(Accumulator<X>(*x.data<X>()));
      stream.pool().for_ranges(y.elements(), kTaskElements, [&](int64_t begin, int64_t end) {
        std::fill(y.data<Y>() + begin, y.data<Y>() + end, value);
      });
    });
  });
}

void fill(Stream& stream, const Tensor& y, double value) {
  dispatch_floating(y.dtype(), [&]<class Y>() {
    stream.pool().for_ranges(y.elements(), kTaskElements, [&](int64_t begin, int64_t end) {
      std::fill(y.data<Y>() + begin, y.data<Y>() + end, Y(Accumulator<Y>(value)));
    });
  });
}

}  // namespace witan::kernels::cpu
