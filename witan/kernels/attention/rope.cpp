#include "witan/kernels/attention/rope.h"

namespace witan::kernels {

void rope(Stream& stream, const Tensor& y, const Tensor& table, const Tensor& x, const Tensor& positions,
          const RopeArgs& args) {
  WITAN_LAUNCH(stream, rope, (Cost{3.0 * static_cast<double>(x.elements()), bytes_of(y, table, x, positions)}), y,
               table, x, positions, args);
}

}  // namespace witan::kernels
