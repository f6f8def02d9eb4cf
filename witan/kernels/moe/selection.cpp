#include "witan/kernels/moe/selection.h"

namespace witan::kernels {

void select_experts(Stream& stream, const RouterOutputs& out, const Tensor& logits, const Scoring& scoring,
                    const Selection& selection) {
  const double passes = static_cast<double>(out.ids.size(1) + selection.groups * selection.group_score_topk);
  const Cost cost{static_cast<double>(logits.elements()) * (5 + passes),
                  bytes_of(out.ids, out.weights, logits, selection.bias, selection.random.ids)};
  WITAN_LAUNCH(stream, select_experts, cost, out, logits, scoring, selection);
}

void weigh_chosen(Stream& stream, const RouterOutputs& out, const Tensor& logits, const Scoring& scoring) {
  const Cost cost{5.0 * static_cast<double>(out.ids.elements()), 2 * bytes_of(out.ids, out.weights)};
  WITAN_LAUNCH(stream, weigh_chosen, cost, out, logits, scoring);
}

// Costs are those of one iteration: how many there are is not known here.
void sinkhorn_bias(Stream& stream, const Tensor& bias, const Tensor& logits, int64_t iterations, double tolerance,
                   const Tensor& sequence_ids) {
  const Cost cost{6.0 * static_cast<double>(logits.elements()), bytes_of(bias, logits, sequence_ids)};
  WITAN_LAUNCH(stream, sinkhorn_bias, cost, bias, logits, iterations, tolerance, sequence_ids);
}

}  // namespace witan::kernels
