#include "witan/kernels/pointwise/jitter.h"

namespace witan::kernels {

void jitter(Stream& stream, const Tensor& y, const Tensor& x, const Dropout& where, double eps) {
  const Cost cost{2.0 * static_cast<double>(y.elements()), bytes_of(y, x)};
  WITAN_LAUNCH(stream, jitter, cost, y, x, where, eps);
}

}  // namespace witan::kernels
