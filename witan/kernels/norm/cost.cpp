#include "witan/kernels/norm/magnitude.h"
#include "witan/kernels/norm/norm.h"

namespace witan::kernels {

void rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& r, const Tensor& x, const NormWeight& w,
                     double eps) {
  const Cost cost{4.0 * static_cast<double>(x.elements()), bytes_of(x, y, r, w.values)};
  WITAN_LAUNCH(stream, rmsnorm_forward, cost, y, r, x, w, eps);
}

void rmsnorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x, const NormWeight& w,
                            const Tensor& r) {
  const Cost cost{8.0 * static_cast<double>(x.elements()), bytes_of(dx, dy, x, w.values, r)};
  WITAN_LAUNCH(stream, rmsnorm_backward_input, cost, dx, dy, x, w, r);
}

void add_rmsnorm_forward(Stream& stream, const Tensor& sum, const Tensor& y, const Tensor& r, const Tensor& a,
                         const Tensor& b, const NormWeight& w, double eps) {
  const Cost cost{5.0 * static_cast<double>(sum.elements()), bytes_of(sum, y, r, a, b, w.values)};
  WITAN_LAUNCH(stream, add_rmsnorm_forward, cost, sum, y, r, a, b, w, eps);
}

void add_rmsnorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dsum, const Tensor& dy,
                                const Tensor& sum, const NormWeight& w, const Tensor& r) {
  const double flops = dsum.defined() ? 9.0 : 8.0;
  const Cost cost{flops * static_cast<double>(sum.elements()), bytes_of(dx, dsum, dy, sum, w.values, r)};
  WITAN_LAUNCH(stream, add_rmsnorm_backward_input, cost, dx, dsum, dy, sum, w, r);
}

void rmsnorm_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                             const Tensor& r) {
  const Cost cost{3.0 * static_cast<double>(x.elements()), bytes_of(dw, dy, x, r)};
  WITAN_LAUNCH(stream, rmsnorm_backward_weight, cost, dw, write, dy, x, r);
}

void rmsnorm_backward(Stream& stream, const Tensor& dx, const Tensor& dw, Write write, const Tensor& dsum,
                      const Tensor& dy, const Tensor& x, const NormWeight& w, const Tensor& r) {
  const double flops = dsum.defined() ? 12.0 : 11.0;
  const Cost cost{flops * static_cast<double>(x.elements()), bytes_of(dx, dw, dsum, dy, x, w.values, r)};
  WITAN_LAUNCH(stream, rmsnorm_backward, cost, dx, dw, write, dsum, dy, x, w, r);
}

void layernorm_forward(Stream& stream, const Tensor& y, const Tensor& mean, const Tensor& r, const Tensor& x,
                       const NormWeight& w, const Tensor& b, double eps) {
  const Cost cost{7.0 * static_cast<double>(x.elements()), bytes_of(x, y, mean, r, w.values, b)};
  WITAN_LAUNCH(stream, layernorm_forward, cost, y, mean, r, x, w, b, eps);
}

void add_layernorm_forward(Stream& stream, const Tensor& sum, const Tensor& y, const Tensor& mean, const Tensor& r,
                           const Tensor& a, const Tensor& b, const NormWeight& w, const Tensor& bias, double eps) {
  const Cost cost{8.0 * static_cast<double>(sum.elements()), bytes_of(sum, y, mean, r, a, b, w.values, bias)};
  WITAN_LAUNCH(stream, add_layernorm_forward, cost, sum, y, mean, r, a, b, w, bias, eps);
}

void layernorm_backward(Stream& stream, const Tensor& dx, const NormGradients& to, const Tensor& dsum, const Tensor& dy,
                        const Tensor& x, const NormWeight& w, const Tensor& mean, const Tensor& r) {
  const double flops = 11.0 + (dsum.defined() ? 1 : 0) + (to.dw.defined() ? 2 : 0) + (to.db.defined() ? 1 : 0);
  const Cost cost{flops * static_cast<double>(x.elements()),
                  bytes_of(dx, to.dw, to.db, dsum, dy, x, w.values, mean, r)};
  WITAN_LAUNCH(stream, layernorm_backward, cost, dx, to, dsum, dy, x, w, mean, r);
}

void layernorm_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                               const Tensor& mean, const Tensor& r) {
  const Cost cost{4.0 * static_cast<double>(x.elements()), bytes_of(dw, dy, x, mean, r)};
  WITAN_LAUNCH(stream, layernorm_backward_weight, cost, dw, write, dy, x, mean, r);
}

void bias_backward(Stream& stream, const Tensor& db, Write write, const Tensor& dy) {
  WITAN_LAUNCH(stream, bias_backward, (Cost{static_cast<double>(dy.elements()), bytes_of(db, dy)}), db, write, dy);
}

void sharded_rmsnorm_squares(Stream& stream, const Tensor& sums, const Tensor& x) {
  const Cost cost{2.0 * static_cast<double>(x.elements()), bytes_of(sums, x)};
  WITAN_LAUNCH(stream, sharded_rmsnorm_squares, cost, sums, x);
}

void sharded_rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& r, const Tensor& x, const NormWeight& w,
                             const Tensor& sums, int64_t width, double eps) {
  const Cost cost{2.0 * static_cast<double>(x.elements()), bytes_of(y, r, x, w.values, sums)};
  WITAN_LAUNCH(stream, sharded_rmsnorm_forward, cost, y, r, x, w, sums, width, eps);
}

void sharded_rmsnorm_products(Stream& stream, const Tensor& sums, const Tensor& dy, const Tensor& x,
                              const NormWeight& w) {
  const Cost cost{3.0 * static_cast<double>(x.elements()), bytes_of(sums, dy, x, w.values)};
  WITAN_LAUNCH(stream, sharded_rmsnorm_products, cost, sums, dy, x, w);
}

void sharded_rmsnorm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x,
                                    const NormWeight& w, const Tensor& r, const Tensor& sums, int64_t width) {
  const Cost cost{4.0 * static_cast<double>(x.elements()), bytes_of(dx, dy, x, w.values, r, sums)};
  WITAN_LAUNCH(stream, sharded_rmsnorm_backward_input, cost, dx, dy, x, w, r, sums, width);
}

void low_rank_squares(Stream& stream, const Tensor& squares, const Tensor& base, const Tensor& p, const Tensor& g,
                      const Tensor& b, double scale) {
  const auto elements = static_cast<double>(b.elements()), r = static_cast<double>(b.size(1));
  const Cost cost{elements * (2 * r + 4), bytes_of(squares, base, p, g, b)};
  WITAN_LAUNCH(stream, low_rank_squares, cost, squares, base, p, g, b, scale);
}

void magnitude_factors(Stream& stream, const Tensor& factors, const Tensor& inverses, const Tensor& change,
                       const Tensor& base, const Tensor& squares) {
  const Cost cost{5.0 * static_cast<double>(change.elements()), bytes_of(factors, inverses, change, base, squares)};
  WITAN_LAUNCH(stream, magnitude_factors, cost, factors, inverses, change, base, squares);
}

void scale_columns(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& factors) {
  const Cost cost{static_cast<double>(x.elements()), bytes_of(y, x, factors)};
  WITAN_LAUNCH(stream, scale_columns, cost, y, x, factors);
}

}  // namespace witan::kernels
