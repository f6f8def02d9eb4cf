#include "witan/kernels/pointwise/soft_cap.h"

namespace witan::kernels {

// A tangent counts as 12.
void soft_cap_forward(Stream& stream, const Tensor& y, const Tensor& x, double scale, double cap) {
  WITAN_LAUNCH(stream, soft_cap_forward, (Cost{14 * static_cast<double>(x.elements()), bytes_of(y, x)}), y, x, scale,
               cap);
}

void soft_cap_backward(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& y, double scale, double cap) {
  WITAN_LAUNCH(stream, soft_cap_backward, (Cost{5 * static_cast<double>(y.elements()), bytes_of(dx, dy, y)}), dx, dy, y,
               scale, cap);
}

}  // namespace witan::kernels
