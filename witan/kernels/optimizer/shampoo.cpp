#include "witan/kernels/optimizer/shampoo.h"

#include <cassert>

namespace witan::kernels {

void shampoo_moments(Stream& stream, const ShampooMoments& t, const Tensor& step, const ShampooMomentArgs& args) {
  const Cost cost{18.0 * static_cast<double>(t.outer.elements()),
                  bytes_of(t.gradient, t.outer, t.filtered, t.grafted) + 2 * bytes_of(t.m, t.v)};
  WITAN_LAUNCH(stream, shampoo_moments, cost, t, step, args);
}

void decay_factor(Stream& stream, const Tensor& x, const Tensor& step, double beta) {
  WITAN_LAUNCH(stream, decay_factor, (Cost{static_cast<double>(x.elements()), 2 * bytes_of(x)}), x, step, beta);
}

void graft(Stream& stream, const Tensor& direction, const Tensor& grafted, const Tensor& sums, const Tensor& step,
           const GraftArgs& args) {
  assert(direction.shape() == grafted.shape() && direction.stride(1) == 1 && grafted.stride(1) == 1);
  const Cost cost{5.0 * static_cast<double>(direction.elements()), 3 * bytes_of(direction) + 2 * bytes_of(grafted)};
  WITAN_LAUNCH(stream, graft, cost, direction, grafted, sums, step, args);
}

void apply_direction(Stream& stream, const DirectedTensors& t, const Tensor& step, const DirectedArgs& args) {
  const Cost cost{4.0 * static_cast<double>(t.value.elements()),
                  bytes_of(t.direction) + 2 * bytes_of(t.value, t.remainder)};
  WITAN_LAUNCH(stream, apply_direction, cost, t, step, args);
}

}  // namespace witan::kernels
