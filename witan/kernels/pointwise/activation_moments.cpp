#include "witan/kernels/pointwise/activation_moments.h"

namespace witan::kernels {

void activation_moments(Stream& stream, const Tensor& out, const Tensor& x, const Tensor& added,
                        const Tensor& sequence_ids) {
  assert(out.dtype() == DType::f64 && out.elements() == kActivationMoments && x.contiguous());
  assert(!added.defined() || (added.shape() == x.shape() && added.dtype() == x.dtype() && added.contiguous()));
  assert(!sequence_ids.defined() || (sequence_ids.dtype() == DType::i32 && sequence_ids.contiguous() &&
                                     sequence_ids.elements() == x.shape().as_rows().first));
  const Cost cost{3.0 * static_cast<double>(x.elements()), bytes_of(out, x, added, sequence_ids)};
  WITAN_LAUNCH(stream, activation_moments, cost, out, x, added, sequence_ids);
}

}  // namespace witan::kernels
