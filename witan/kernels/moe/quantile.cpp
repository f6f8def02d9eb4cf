#include "witan/kernels/moe/quantile.h"

namespace witan::kernels {

void choose_by_quantiles(Stream& stream, const Tensor& ids, const Tensor& margins, const Tensor& logits,
                         const Tensor& bias, const Tensor& sequence_ids) {
  const Cost cost{static_cast<double>(logits.elements()) * static_cast<double>(3 + ids.size(1)),
                  bytes_of(ids, margins, logits, bias, sequence_ids)};
  WITAN_LAUNCH(stream, choose_by_quantiles, cost, ids, margins, logits, bias, sequence_ids);
}

void quantile_sums(Stream& stream, const Tensor& sums, const Tensor& margins, int64_t topk, const Tensor& tokens) {
  const Cost cost{static_cast<double>(margins.elements()), bytes_of(sums, margins)};
  WITAN_LAUNCH(stream, quantile_sums, cost, sums, margins, topk, tokens);
}

void update_quantile_bias(Stream& stream, const Tensor& bias, const Tensor& sums, const Tensor& step) {
  const Cost cost{3.0 * static_cast<double>(bias.elements()), bytes_of(bias, sums)};
  WITAN_LAUNCH(stream, update_quantile_bias, cost, bias, sums, step);
}

}  // namespace witan::kernels
