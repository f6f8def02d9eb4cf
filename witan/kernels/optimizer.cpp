#include "witan/kernels/optimizer.h"

namespace witan::kernels {

void adamw(Stream& stream, const AdamWTensors& t, const Tensor& step, const AdamWArgs& args) {
  const Tensor& p = t.master.defined() ? t.master : t.value;
  const Cost cost{16.0 * static_cast<double>(p.elements()),
                  bytes_of(t.gradient, t.master.defined() ? t.value : Tensor()) + 2 * bytes_of(p, t.m, t.v)};
  WITAN_LAUNCH(stream, adamw, cost, t, step, args);
}

void sgd(Stream& stream, const SgdTensors& t, const Tensor& step, const SgdArgs& args) {
  const Tensor& p = t.master.defined() ? t.master : t.value;
  const Cost cost{7.0 * static_cast<double>(p.elements()),
                  bytes_of(t.gradient, t.master.defined() ? t.value : Tensor()) + 2 * bytes_of(p, t.momentum)};
  WITAN_LAUNCH(stream, sgd, cost, t, step, args);
}

void square_sums(Stream& stream, const Tensor& sums, const Tensor& x) {
  WITAN_LAUNCH(stream, square_sums, (Cost{3.0 * static_cast<double>(x.elements()), bytes_of(x, sums)}), sums, x);
}

void total_sums(Stream& stream, const Tensor& total, const Tensor& sums, const Tensor& order) {
  const Cost cost{static_cast<double>(sums.elements()), bytes_of(total, sums, order)};
  WITAN_LAUNCH(stream, total_sums, cost, total, sums, order);
}

void clip_by_norm(Stream& stream, const Tensor& step, const Tensor& total, double max_norm) {
  WITAN_LAUNCH(stream, clip_by_norm, (Cost{4.0, bytes_of(step, total)}), step, total, max_norm);
}

}  // namespace witan::kernels
