#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/grouped/grouped_gemm.h"

namespace witan::kernels::cpu {

void grouped_bias_forward(Stream& stream, const Tensor& y, const RowGroups& groups, const Tensor& bias, const Tensor& s,
                          int64_t first) {
  dispatch_floating(y.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_rows_by_group(stream, y, groups, [&, M = bias.size(1)](int64_t t, int64_t e) {
      T* out = y.data<T>() + t * y.size(1) + first;
      const T* add = bias.data<T>() + e * M;
      const A weight = s.defined() ? s.data<A>()[t] : A(1);
#pragma omp simd
      for (int64_t j = 0; j < M; ++j) store(out[j], A(out[j]) + weight * A(add[j]));
    });
  });
}

void grouped_bias_backward(Stream& stream, const Tensor& dbias, Write write, const Tensor& dy, const RowGroups& groups,
                           const Tensor& s, int64_t first) {
  dispatch_floating(dy.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for (int64_t e = 0; e < groups.experts(); ++e) {
      const int64_t M = dbias.size(1), from = groups.begin.data<int64_t>()[e], rows = groups.count.data<int64_t>()[e];
      const auto add = [&](int64_t i, int64_t begin, int64_t end, A* sums) {
        const T* in = dy.data<T>() + (from + i) * dy.size(1) + first;
        const A weight = s.defined() ? s.data<A>()[from + i] : A(1);
#pragma omp simd
        for (int64_t j = begin; j < end; ++j) sums[j - begin] += weight * A(in[j]);
      };
      sum_over_rows<T, A>(stream, dbias.narrow(0, e, 1).reshape({M}), write, Shape{rows, M}, add);
    }
  });
}

void grouped_bias_backward_scale(Stream& stream, const Tensor& ds, const Tensor& dy, const RowGroups& groups,
                                 const Tensor& bias, int64_t first) {
  dispatch_floating(dy.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    for_rows_by_group(stream, dy, groups, [&, M = bias.size(1)](int64_t t, int64_t e) {
      const T *in = dy.data<T>() + t * dy.size(1) + first, *added = bias.data<T>() + e * M;
      A dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t j = 0; j < M; ++j) dot += A(in[j]) * A(added[j]);
      ds.data<A>()[t] = dot;
    });
  });
}

}  // namespace witan::kernels::cpu
