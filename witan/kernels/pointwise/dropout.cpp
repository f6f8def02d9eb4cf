#include "witan/kernels/pointwise/dropout.h"

namespace witan::kernels {

// Drawing is integer work and is not counted.
void dropout(Stream& stream, const Tensor& y, const Tensor& x, const Dropout& how) {
  WITAN_LAUNCH(stream, dropout, (Cost{static_cast<double>(x.elements()), bytes_of(y, x)}), y, x, how);
}

}  // namespace witan::kernels
