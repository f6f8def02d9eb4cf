#include "witan/kernels/pointwise/clamp.h"

namespace witan::kernels {

void clamp_forward(Stream& stream, const Tensor& y, const Tensor& x, double bound) {
  const Cost cost{2.0 * static_cast<double>(x.elements()), bytes_of(y, x)};
  WITAN_LAUNCH(stream, clamp_forward, cost, y, x, bound);
}

void clamp_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x, double bound) {
  const Cost cost{2.0 * static_cast<double>(x.elements()), bytes_of(dx, dy, x)};
  WITAN_LAUNCH(stream, clamp_backward, cost, dx, dy, x, bound);
}

}  // namespace witan::kernels
