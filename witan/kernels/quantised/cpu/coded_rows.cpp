#include <vector>

#include "witan/kernels/quantised/cpu/decode_groups.h"

namespace witan::kernels::cpu {

// A task decodes a row of w after the other, and multiplies it by all rows of x.
void coded_rows(Stream& stream, const Tensor& y, const Tensor& x, const Codes& w) {
  const int64_t M = x.size(0), K = x.size(1), N = y.size(1);
  assert(M <= kMostCodedRows && N * K == w.elements() && K % traits_of(w.format).group == 0);
  assert(x.contiguous() && y.contiguous() && w.words.contiguous() && w.scales.contiguous() && y.dtype() == x.dtype());
  const int64_t groups = K / traits_of(w.format).group;
  const auto* const words = reinterpret_cast<const uint32_t*>(w.words.data<int32_t>());
  rules::dispatch_format(w.format, [&]<WeightFormat kFormat>() {
    const auto* const scales = w.scales.data<ScaleOf<kFormat>>();
    dispatch_floating(x.dtype(), [&]<class T>() {
      using A = Accumulator<T>;
      stream.pool().for_ranges(N, std::max<int64_t>(kTaskElements / K, 1), [&](int64_t begin, int64_t end) {
        std::vector<T> row(static_cast<size_t>(K));
        for (int64_t n = begin; n < end; ++n) {
          decode_groups<kFormat>(row.data(), words, scales, n * groups, groups);
          for (int64_t m = 0; m < M; ++m) {
            const T *const from = x.data<T>() + m * K, *const weights = row.data();
            A sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t k = 0; k < K; ++k) sum += A(from[k]) * A(weights[k]);
            y.data<T>()[m * N + n] = T(sum);
          }
        }
      });
    });
  });
}

}  // namespace witan::kernels::cpu
