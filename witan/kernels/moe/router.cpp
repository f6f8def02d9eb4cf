#include "witan/kernels/moe/router.h"

namespace witan::kernels {

void router_forward(Stream& stream, const RouterOutputs& out, const Tensor& logits, const Scoring& scoring) {
  const auto elements = static_cast<double>(logits.elements());
  const Cost cost{elements * static_cast<double>(7 + out.ids.size(1)),
                  bytes_of(logits, out.ids, out.weights, out.probs, out.lse, out.counts, out.sequence_ids)};
  WITAN_LAUNCH(stream, router_forward, cost, out, logits, scoring);
}

void count_tokens(Stream& stream, const Tensor& tokens, const Tensor& counts, int64_t topk) {
  const Cost cost{static_cast<double>(counts.elements()), bytes_of(tokens, counts)};
  WITAN_LAUNCH(stream, count_tokens, cost, tokens, counts, topk);
}

void update_expert_bias(Stream& stream, const Tensor& bias, const Tensor& load, const Tensor& step, double rate) {
  const Cost cost{4.0 * static_cast<double>(bias.elements()), 2 * bytes_of(bias) + bytes_of(load)};
  WITAN_LAUNCH(stream, update_expert_bias, cost, bias, load, step, rate);
}

void router_sums(Stream& stream, const Tensor& sums, const RouterOutputs& part) {
  const Cost cost{static_cast<double>(part.probs.elements() + 2 * part.lse.elements()),
                  bytes_of(sums, part.probs, part.lse)};
  WITAN_LAUNCH(stream, router_sums, cost, sums, part);
}

void router_losses(Stream& stream, const RouterOutputs& out, const RouterTotals& totals) {
  const Cost cost{2.0 * static_cast<double>(totals.counts.elements()),
                  bytes_of(out.balance, out.z, out.entropy, totals.sums, totals.counts)};
  WITAN_LAUNCH(stream, router_losses, cost, out, totals);
}

void router_backward(Stream& stream, const Tensor& dlogits, const RouterGradients& gradients, const RouterOutputs& out,
                     const Scoring& scoring, int parts) {
  const Cost cost{
      6.0 * static_cast<double>(dlogits.elements()),
      bytes_of(dlogits, gradients.weights, out.ids, out.weights, out.probs, out.logits, out.lse, out.counts)};
  WITAN_LAUNCH(stream, router_backward, cost, dlogits, gradients, out, scoring, parts);
}

}  // namespace witan::kernels
