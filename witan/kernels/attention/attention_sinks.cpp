#include "witan/kernels/attention/attention_sinks.h"

namespace witan::kernels {

void attention_sinks_forward(Stream& stream, const Tensor& y, const Tensor& lse, const Tensor& sinks) {
  const Cost cost{static_cast<double>(y.elements()), 2 * bytes_of(y, lse) + bytes_of(sinks)};
  WITAN_LAUNCH(stream, attention_sinks_forward, cost, y, lse, sinks);
}

void attention_sinks_backward(Stream& stream, const Tensor& dsinks, Write write, const Tensor& dy, const Tensor& y,
                              const Tensor& lse, const Tensor& sinks) {
  const Cost cost{2.0 * static_cast<double>(y.elements()), bytes_of(dsinks, dy, y, lse, sinks)};
  WITAN_LAUNCH(stream, attention_sinks_backward, cost, dsinks, write, dy, y, lse, sinks);
}

}  // namespace witan::kernels
