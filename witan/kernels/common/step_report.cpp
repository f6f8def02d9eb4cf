#include "witan/kernels/common/step_report.h"

namespace witan::kernels {

void loss_weights(Stream& stream, const Tensor& weights, const Tensor& mask, const Tensor& targets) {
  WITAN_LAUNCH(stream, loss_weights, (Cost{static_cast<double>(mask.elements()), bytes_of(weights, mask)}), weights,
               mask, targets);
}

void collect(Stream& stream, const Tensor& out, const std::vector<Tensor>& sources) {
  WITAN_LAUNCH(stream, collect, (Cost{0, 2 * bytes_of(out)}), out, sources);
}

}  // namespace witan::kernels
