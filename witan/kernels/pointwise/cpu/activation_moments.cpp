#include "witan/kernels/pointwise/activation_moments.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "witan/kernels/common/cpu/rows.h"

namespace witan::kernels::cpu {
namespace {

struct Moments {
  double squares = 0, largest = 0;
  int64_t zeros = 0, elements = 0;
};

// `added` may be null.
template <class T>
Moments moments_of(const T* x, const T* added, int64_t count) {
  double squares = 0, largest = 0;
  int64_t zeros = 0;
#pragma omp simd reduction(+ : squares, zeros) reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) {
    using A = Accumulator<T>;
    const auto value = static_cast<double>(added == nullptr ? x[i] : T(A(x[i]) + A(added[i])));
    squares += value * value;
    zeros += value == 0;
    largest = std::abs(value) > largest ? std::abs(value) : largest;
  }
  return {squares, largest, zeros, count};
}

}  // namespace

void activation_moments(Stream& stream, const Tensor& out, const Tensor& x, const Tensor& added,
                        const Tensor& sequence_ids) {
  // Padding rows are left out, so rows are summed one by one if there can be any, and otherwise in tasks.
  const int64_t elements = x.elements(), width = sequence_ids.defined() ? x.shape().last() : kTaskElements;
  const int64_t runs = width == 0 ? 0 : (elements + width - 1) / width;
  std::vector<Moments> of_runs(static_cast<size_t>(runs));
  dispatch_floating(x.dtype(), [&]<class T>() {
    stream.pool().for_ranges(
        runs, std::max<int64_t>(kTaskElements / std::max<int64_t>(width, 1), 1), [&](int64_t first, int64_t last) {
          for (int64_t run = first; run < last; ++run) {
            if (is_padding(sequence_ids, run)) continue;
            const int64_t begin = run * width, count = std::min(width, elements - begin);
            const T* const also = added.defined() ? added.data<T>() + begin : nullptr;
            of_runs[static_cast<size_t>(run)] = moments_of(static_cast<const T*>(x.data<T>()) + begin, also, count);
          }
        });
  });
  Moments all;
  for (const Moments& one : of_runs) {
    all.squares += one.squares;
    all.zeros += one.zeros;
    all.elements += one.elements;
    all.largest = std::max(all.largest, one.largest);
  }
  double* const to = out.data<double>();
  to[activation_moment::square_sum] = all.squares;
  to[activation_moment::largest] = std::isnan(all.squares) ? all.squares : all.largest;  // a maximum ignores NaN
  to[activation_moment::zeros] = static_cast<double>(all.zeros);
  to[activation_moment::elements] = static_cast<double>(all.elements);
}

}  // namespace witan::kernels::cpu
