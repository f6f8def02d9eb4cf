#include "witan/kernels/moe/balance.h"

namespace witan::kernels {

void balance_loss(Stream& stream, const Tensor& loss, const Tensor& sums, const Tensor& counts,
                  const TokenCount& tokens) {
  const Cost cost{2.0 * static_cast<double>(sums.elements()), bytes_of(loss, sums, counts)};
  WITAN_LAUNCH(stream, balance_loss, cost, loss, sums, counts, tokens);
}

void balance_backward(Stream& stream, const Tensor& dprobs, const Tensor& dloss, const Tensor& counts,
                      const TokenCount& tokens, Write write) {
  const Cost cost{2.0 * static_cast<double>(counts.elements()), bytes_of(dprobs, dloss, counts)};
  WITAN_LAUNCH(stream, balance_backward, cost, dprobs, dloss, counts, tokens, write);
}

}  // namespace witan::kernels
