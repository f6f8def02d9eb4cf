#include "witan/kernels/common/step_report.h"

#include <algorithm>
#include <cassert>

namespace witan::kernels::cpu {

void loss_weights(Stream&, const Tensor& weights, const Tensor& mask, const Tensor& targets) {
  const double denominator = std::max(targets.data<double>()[0], 1.0);  // no targets: a loss of 0, not 0/0
  dispatch_floating(weights.dtype(), [&]<class A>() {
    for (int64_t t = 0; t < mask.elements(); ++t)
      weights.data<A>()[t] = A(static_cast<double>(mask.data<float>()[t]) / denominator);
  });
}

void collect(Stream&, const Tensor& out, const std::vector<Tensor>& sources) {
  double* next = out.data<double>();
  const auto copy = [&]<class T>(const Tensor& source) {
    for (const T value : source.span<T>()) *next++ = static_cast<double>(value);
  };
  for (const Tensor& source : sources) {
    if (source.dtype() == DType::i32)
      copy.template operator()<int32_t>(source);
    else if (source.dtype() == DType::i64)
      copy.template operator()<int64_t>(source);
    else
      dispatch_floating(source.dtype(), [&]<class T>() { copy.template operator()<T>(source); });
  }
  assert(next == out.data<double>() + out.elements());
}

}  // namespace witan::kernels::cpu
