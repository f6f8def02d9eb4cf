#include "witan/kernels/elementwise.h"

namespace witan::kernels {

void add(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b) {
  WITAN_LAUNCH(stream, add, (Cost{static_cast<double>(y.elements()), bytes_of(y, a, b)}), y, a, b);
}

void scale(Stream& stream, const Tensor& y, Write write, const Tensor& x, double alpha) {
  const bool adds = write == Write::accumulate;
  const Cost cost{(adds ? 2.0 : 1.0) * static_cast<double>(y.elements()), bytes_of(y, x) + (adds ? bytes_of(y) : 0.0)};
  WITAN_LAUNCH(stream, scale, cost, y, write, x, alpha);
}

void cast(Stream& stream, const Tensor& y, const Tensor& x) {
  WITAN_LAUNCH(stream, cast, (Cost{0, bytes_of(y, x)}), y, x);
}

void sum(Stream& stream, const Tensor& y, const Tensor& partials, const Tensor& x) {
  WITAN_LAUNCH(stream, sum, (Cost{static_cast<double>(x.elements()), bytes_of(y, partials, x)}), y, partials, x);
}

void broadcast(Stream& stream, const Tensor& y, const Tensor& x) {
  WITAN_LAUNCH(stream, broadcast, (Cost{0, bytes_of(y, x)}), y, x);
}

}  // namespace witan::kernels
