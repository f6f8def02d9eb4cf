#include "witan/kernels/activation_moments.h"

namespace witan::kernels {

void activation_moments(Stream& stream, const Tensor& out, const Tensor& x, const Tensor& added) {
  assert(out.dtype() == DType::f64 && out.elements() == kActivationMoments && x.contiguous());
  assert(!added.defined() || (added.shape() == x.shape() && added.dtype() == x.dtype() && added.contiguous()));
  const Cost cost{3.0 * static_cast<double>(x.elements()), bytes_of(out, x, added)};
  WITAN_LAUNCH(stream, activation_moments, cost, out, x, added);
}

}  // namespace witan::kernels
