#include "witan/kernels/objective/objective.h"

namespace witan::kernels {

// All of them read and write a few numbers for each token.

void log_ratios(Stream& stream, const Tensor& out, const Tensor& losses, const Tensor& others, const Tensor& mask) {
  const Cost cost{2.0 * static_cast<double>(out.elements()),
                  bytes_of(out, losses, others.defined() ? others : mask, mask)};
  WITAN_LAUNCH(stream, log_ratios, cost, out, losses, others, mask);
}

void sequence_sums(Stream& stream, const Tensor& sums, const Tensor& values, const Tensor& mask,
                   const RowSequences& sequences) {
  const Cost cost{static_cast<double>(mask.elements()), bytes_of(sums, values, mask, sequences.ids)};
  WITAN_LAUNCH(stream, sequence_sums, cost, sums, values, mask, sequences);
}

void sequence_weights(Stream& stream, const Tensor& weights, const Tensor& mask, const Tensor& number,
                      const Tensor& counts, const RowSequences& sequences, double scale) {
  const Cost cost{2.0 * static_cast<double>(mask.elements()), bytes_of(weights, mask, sequences.ids)};
  WITAN_LAUNCH(stream, sequence_weights, cost, weights, mask, number, counts, sequences, scale);
}

void policy_terms(Stream& stream, const Tensor& terms, const Tensor& slopes, const PolicyInputs& inputs,
                  const RowSequences& sequences, const PolicyOptions& options) {
  const Cost cost{30.0 * static_cast<double>(slopes.elements()),
                  bytes_of(terms, slopes, inputs.log_ratios, inputs.advantages, inputs.mask)};
  WITAN_LAUNCH(stream, policy_terms, cost, terms, slopes, inputs, sequences, options);
}

void kl_terms(Stream& stream, const Tensor& terms, const Tensor& slopes, const Tensor& log_ratios, const Tensor& mask) {
  const Cost cost{13.0 * static_cast<double>(slopes.elements()), bytes_of(terms, slopes, log_ratios, mask)};
  WITAN_LAUNCH(stream, kl_terms, cost, terms, slopes, log_ratios, mask);
}

void preference_terms(Stream& stream, const Tensor& terms, const Tensor& slopes, const PreferenceInputs& inputs,
                      const RowSequences& sequences, const PreferenceOptions& options) {
  const Cost cost{40.0 * static_cast<double>(slopes.elements()),
                  bytes_of(terms, slopes, inputs.losses, inputs.mask, sequences.ids)};
  WITAN_LAUNCH(stream, preference_terms, cost, terms, slopes, inputs, sequences, options);
}

void weighted_sums(Stream& stream, const Tensor& sums, const Tensor& terms, const Tensor& weights) {
  const Cost cost{2.0 * static_cast<double>(terms.elements()), bytes_of(sums, terms, weights)};
  WITAN_LAUNCH(stream, weighted_sums, cost, sums, terms, weights);
}

void sequence_means(Stream& stream, const Tensor& out, const Tensor& sums, const Tensor& counts, const Tensor& mask,
                    const RowSequences& sequences) {
  const Cost cost{static_cast<double>(out.elements()), bytes_of(out, mask, sequences.ids)};
  WITAN_LAUNCH(stream, sequence_means, cost, out, sums, counts, mask, sequences);
}

void scaled_products(Stream& stream, const Tensor& out, double scale, const Tensor& seed, const Tensor& a,
                     const Tensor& b) {
  const Cost cost{2.0 * static_cast<double>(out.elements()), bytes_of(out, a, b)};
  WITAN_LAUNCH(stream, scaled_products, cost, out, scale, seed, a, b);
}

}  // namespace witan::kernels
