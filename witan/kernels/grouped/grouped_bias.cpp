#include "witan/kernels/grouped/grouped_bias.h"

#include <cassert>

namespace witan::kernels {
namespace {

// Of the groups' rows, `touched` times their columns that have a bias.
Cost cost_of(double flops, double touched, const Tensor& y, const RowGroups& groups, const Tensor& bias) {
  const double elements = static_cast<double>(groups.rows_of(y.size(0))) * static_cast<double>(bias.size(1));
  return {flops * elements, touched * elements * static_cast<double>(size_of(y.dtype())) + bytes_of(bias)};
}

void check([[maybe_unused]] const Tensor& y, [[maybe_unused]] const RowGroups& groups,
           [[maybe_unused]] const Tensor& bias, [[maybe_unused]] int64_t first) {
  assert(y.shape().dims() == 2 && y.contiguous() && bias.shape().dims() == 2 && bias.contiguous());
  assert(bias.size(0) == groups.experts() && first >= 0 && first + bias.size(1) <= y.size(1));
}

}  // namespace

void grouped_bias_forward(Stream& stream, const Tensor& y, const RowGroups& groups, const Tensor& bias, const Tensor& s,
                          int64_t first) {
  check(y, groups, bias, first);
  WITAN_LAUNCH(stream, grouped_bias_forward, cost_of(2, 2, y, groups, bias), y, groups, bias, s, first);
}

void grouped_bias_backward(Stream& stream, const Tensor& dbias, Write write, const Tensor& dy, const RowGroups& groups,
                           const Tensor& s, int64_t first) {
  check(dy, groups, dbias, first);
  WITAN_LAUNCH(stream, grouped_bias_backward, cost_of(2, 1, dy, groups, dbias), dbias, write, dy, groups, s, first);
}

void grouped_bias_backward_scale(Stream& stream, const Tensor& ds, const Tensor& dy, const RowGroups& groups,
                                 const Tensor& bias, int64_t first) {
  check(dy, groups, bias, first);
  WITAN_LAUNCH(stream, grouped_bias_backward_scale, cost_of(2, 1, dy, groups, bias), ds, dy, groups, bias, first);
}

}  // namespace witan::kernels
