#include "witan/kernels/pointwise/scaled_sum.h"

namespace witan::kernels {

void scaled_sum(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& wa, const Tensor& b, const Tensor& wb) {
  const double terms = b.defined() ? 3 : 1;
  WITAN_LAUNCH(stream, scaled_sum, (Cost{terms * static_cast<double>(y.elements()), bytes_of(y, a, wa, b, wb)}), y, a,
               wa, b, wb);
}

void scaled_sum_backward(Stream& stream, const Tensor& dx, const Tensor& dw, Write write, const Tensor& partials,
                         const Tensor& dy, const Tensor& x, const Tensor& w) {
  const Cost cost{(dx.defined() ? 3.0 : 2.0) * static_cast<double>(dy.elements()),
                  bytes_of(dx, dw, partials, dy, x, w)};
  WITAN_LAUNCH(stream, scaled_sum_backward, cost, dx, dw, write, partials, dy, x, w);
}

}  // namespace witan::kernels
