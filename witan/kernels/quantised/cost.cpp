#include "witan/kernels/quantised/quantised.h"
#include "witan/kernels/quantised/rules.h"

namespace witan::kernels {

const WeightFormatTraits& traits_of(WeightFormat format) {
  return rules::kTraits[static_cast<size_t>(format)];
}

void decode_weights(Stream& stream, const Codes& codes, Tensor out) {
  WITAN_LAUNCH(stream, decode_weights, (Cost{0, bytes_of(codes.words, codes.scales, out)}), codes, out);
}

void coded_rows(Stream& stream, const Tensor& y, const Tensor& x, const Codes& w) {
  const Cost cost{2.0 * static_cast<double>(x.size(0) * w.elements()), bytes_of(y, x, w.words, w.scales)};
  WITAN_LAUNCH(stream, coded_rows, cost, y, x, w);
}

}  // namespace witan::kernels
