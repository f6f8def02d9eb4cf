#include "witan/kernels/norm/sharded_rmsnorm.h"

namespace witan::kernels {

void sharded_rmsnorm_squares(Stream& stream, const Tensor& sums, const Tensor& x) {
  const Cost cost{2.0 * static_cast<double>(x.elements()), bytes_of(sums, x)};
  WITAN_LAUNCH(stream, sharded_rmsnorm_squares, cost, sums, x);
}

void sharded_rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& r, const Tensor& x, const Tensor& w,
                             const Tensor& sums, int64_t width, double eps) {
  const Cost cost{2.0 * static_cast<double>(x.elements()), bytes_of(y, r, x, w, sums)};
  WITAN_LAUNCH(stream, sharded_rmsnorm_forward, cost, y, r, x, w, sums, width, eps);
}

void sharded_rmsnorm_products(Stream& stream, const Tensor& sums, const Tensor& dy, const Tensor& x, const Tensor& w) {
  const Cost cost{3.0 * static_cast<double>(x.elements()), bytes_of(sums, dy, x, w)};
  WITAN_LAUNCH(stream, sharded_rmsnorm_products, cost, sums, dy, x, w);
}

void sharded_rmsnorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x,
                                    const Tensor& w, const Tensor& r, const Tensor& sums, int64_t width) {
  const Cost cost{4.0 * static_cast<double>(x.elements()), bytes_of(dx, dy, x, w, r, sums)};
  WITAN_LAUNCH(stream, sharded_rmsnorm_backward_input, cost, dx, dy, x, w, r, sums, width);
}

}  // namespace witan::kernels
