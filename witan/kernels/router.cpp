#include "witan/kernels/router.h"

namespace witan::kernels {

void router_forward(Stream& stream, const RouterOutputs& out, const Tensor& logits, bool pre_softmax) {
  const auto elements = static_cast<double>(logits.elements());
  const Cost cost{elements * static_cast<double>(5 + out.ids.size(1)),
                  bytes_of(logits, out.ids, out.weights, out.probs, out.lse, out.counts)};
  WITAN_LAUNCH(stream, router_forward, cost, out, logits, pre_softmax);
}

void router_backward(Stream& stream, const Tensor& dlogits, const RouterGradients& gradients, const RouterOutputs& out,
                     bool pre_softmax) {
  const Cost cost{6.0 * static_cast<double>(dlogits.elements()),
                  bytes_of(dlogits, gradients.weights, out.ids, out.weights, out.probs, out.lse, out.counts)};
  WITAN_LAUNCH(stream, router_backward, cost, dlogits, gradients, out, pre_softmax);
}

}  // namespace witan::kernels
