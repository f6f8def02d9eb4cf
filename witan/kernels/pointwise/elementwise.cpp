#include "witan/kernels/pointwise/elementwise.h"

namespace witan::kernels {

void add(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b) {
  WITAN_LAUNCH(stream, add, (Cost{static_cast<double>(y.elements()), bytes_of(y, a, b)}), y, a, b);
}

void scale(Stream& stream, const Tensor& y, Write write, const Tensor& x, double alpha) {
  const bool adds = write == Write::accumulate;
  const Cost cost{(adds ? 2.0 : 1.0) * static_cast<double>(y.elements()), bytes_of(y, x) + (adds ? bytes_of(y) : 0.0)};
  WITAN_LAUNCH(stream, scale, cost, y, write, x, alpha);
}

void accumulate(Stream& stream, const Tensor& to, Write write, const Tensor& from) {
  const bool adds = write == Write::accumulate;
  const Cost cost{adds ? static_cast<double>(to.elements()) : 0.0, bytes_of(to, from) + (adds ? bytes_of(to) : 0.0)};
  WITAN_LAUNCH(stream, accumulate, cost, to, write, from);
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

void fill(Stream& stream, const Tensor& y, double value) {
  WITAN_LAUNCH(stream, fill, (Cost{0, bytes_of(y)}), y, value);
}

}  // namespace witan::kernels
