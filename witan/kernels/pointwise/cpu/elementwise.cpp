#include "witan/kernels/pointwise/elementwise.h"

#include <algorithm>
#include <functional>

#include "witan/kernels/common/cpu/math.h"
#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/pointwise/rules.h"

namespace witan::kernels::cpu {
namespace {

template <class T>
Accumulator<T> factor_of(const Tensor& w) {
  return w.defined() ? Accumulator<T>(*w.data<T>()) : Accumulator<T>(1);
}

}  // namespace

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

void product(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b) {
  dispatch_floating(y.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().for_ranges(y.elements(), kTaskElements, [&](int64_t begin, int64_t end) {
      const T *left = a.data<T>(), *right = b.data<T>();
      T* out = y.data<T>();
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) store(out[i], A(left[i]) * A(right[i]));
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

void clamp_forward(Stream& stream, const Tensor& y, const Tensor& x, double bound) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().for_ranges(x.elements(), kTaskElements,
                             [&, rule = rules::Clamp<A>{A(bound)}](int64_t begin, int64_t end) {
                               const T* in = x.data<T>();
                               T* out = y.data<T>();
#pragma omp simd
                               for (int64_t i = begin; i < end; ++i) store(out[i], rule.value(A(in[i])));
                             });
  });
}

void clamp_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x, double bound) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().for_ranges(x.elements(), kTaskElements,
                             [&, rule = rules::Clamp<A>{A(bound)}](int64_t begin, int64_t end) {
                               const T *in = x.data<T>(), *from = dy.data<T>();
                               T* to = dx.data<T>();
#pragma omp simd
                               for (int64_t i = begin; i < end; ++i)
                                 store(to[i], rule.passes(A(in[i])) ? A(from[i]) : A(0));
                             });
  });
}

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
      const rules::SoftCapSlope<A> rule{A(scale), A(1 / cap)};
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) store(out[i], rule.gradient(A(capped[i]), A(g[i])));
    });
  });
}

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

void sigmoid_gate_forward(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& gate) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_rows(stream, x, [&, D = x.shape().last()](int64_t t) {
      const T *in = x.data<T>() + t * D, *g = gate.data<T>() + t * D;
      T* out = y.data<T>() + t * D;
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) store(out[d], fast_sigmoid(A(g[d])) * A(in[d]));
    });
  });
}

void sigmoid_gate_backward(Stream& stream, const Tensor& dx, const Tensor& dgate, const Tensor& dy, const Tensor& x,
                           const Tensor& gate) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_rows(stream, x, [&, D = x.shape().last()](int64_t t) {
      const T *in = x.data<T>() + t * D, *of = gate.data<T>() + t * D, *g = dy.data<T>() + t * D;
      T *to_x = dx.data<T>() + t * D, *to_gate = dgate.data<T>() + t * D;
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) {
        const A open = fast_sigmoid(A(of[d]));
        store(to_x[d], open * A(g[d]));
        store(to_gate[d], open * (A(1) - open) * A(g[d]) * A(in[d]));
      }
    });
  });
}

}  // namespace witan::kernels::cpu
