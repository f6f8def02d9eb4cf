#include <cassert>
#include <cmath>

#include "witan/kernels/attention/attention.h"
#include "witan/kernels/common/cpu/rows.h"

namespace witan::kernels::cpu {

void attention_sinks_forward(Stream& stream, const Tensor& y, const Tensor& lse, const Tensor& sinks) {
  const int64_t S = y.size(1), H = y.size(2), hd = y.size(3);
  assert(sinks.elements() == H && lse.elements() * hd == y.elements());
  dispatch_floating(y.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().for_ranges(y.size(0) * S * H, kTaskElements / hd, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {  // of y, [B, S, H]
        A& sum = lse.data<A>()[(row / (S * H) * H + row % H) * S + row / H % S];
        const A sink = A(sinks.data<T>()[row % H]), top = std::max(sum, sink);
        const A joined = top + std::log(std::exp(sum - top) + std::exp(sink - top)), keep = std::exp(sum - joined);
        T* to = y.data<T>() + row * hd;
#pragma omp simd
        for (int64_t d = 0; d < hd; ++d) store(to[d], keep * A(to[d]));
        sum = joined;
      }
    });
  });
}

// Each head is one task, so that its rows are summed in order.
void attention_sinks_backward(Stream& stream, const Tensor& dsinks, Write write, const Tensor& dy, const Tensor& y,
                              const Tensor& lse, const Tensor& sinks) {
  const int64_t B = y.size(0), S = y.size(1), H = y.size(2), hd = y.size(3);
  dispatch_floating(y.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().run(H, [&](int64_t h) {
      const A sink = A(sinks.data<T>()[h]);
      double total = 0;
      for (int64_t b = 0; b < B; ++b)
        for (int64_t i = 0; i < S; ++i) {
          const int64_t row = ((b * S + i) * H + h) * hd;
          const T *g = dy.data<T>() + row, *out = y.data<T>() + row;
          A dot = 0;
#pragma omp simd reduction(+ : dot)
          for (int64_t d = 0; d < hd; ++d) dot += A(g[d]) * A(out[d]);
          total -= static_cast<double>(std::exp(sink - lse.data<A>()[(b * H + h) * S + i]) * dot);
        }
      dispatch_floating(dsinks.dtype(), [&]<class G>() {
        G& to = dsinks.data<G>()[h];
        const double before = write == Write::accumulate ? static_cast<double>(to) : 0;
        to = G(Accumulator<G>(before + total));
      });
    });
  });
}

}  // namespace witan::kernels::cpu
