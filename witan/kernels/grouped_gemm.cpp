#include "witan/kernels/grouped_gemm.h"

#include <cassert>

#include "witan/kernels/cpu/gemm.h"
#include "witan/kernels/cpu/gemm_blocks.h"

namespace witan::kernels {
namespace {

// Of products between the groups' rows of `x` and of `y` and the weights.
Cost cost_of(const RowGroups& groups, const Tensor& x, const Tensor& y, const Tensor& w) {
  const auto rows = static_cast<double>(groups.rows_of(x.size(0)));
  const auto K = static_cast<double>(w.size(2)), N = static_cast<double>(w.size(1));
  return {
      2 * rows * N * K,
      rows * (K * static_cast<double>(size_of(x.dtype())) + N * static_cast<double>(size_of(y.dtype()))) + bytes_of(w)};
}

void check(const RowGroups& groups, const Tensor& x, const Tensor& y, const Tensor& w) {
  assert(w.shape().dims() == 3 && groups.experts() == w.size(0) && groups.begin.size(0) == w.size(0));
  assert(x.size(1) == w.size(2) && y.size(1) == w.size(1) && x.size(0) == y.size(0) && x.dtype() == y.dtype());
  assert(x.stride(1) == 1 && y.stride(1) == 1 && w.stride(2) == 1);
}

}  // namespace

void grouped_gemm_forward(Stream& stream, const Tensor& y, const Tensor& x, const RowGroups& groups, const Tensor& w) {
  check(groups, x, y, w);
  WITAN_LAUNCH(stream, grouped_gemm_forward, cost_of(groups, x, y, w), y, x, groups, w,
               cpu::gemm_workspace(stream, x.dtype(), y.dtype(), x.size(1)));
}

void grouped_gemm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const RowGroups& groups,
                                 const Tensor& w) {
  check(groups, dx, dy, w);
  WITAN_LAUNCH(stream, grouped_gemm_backward_input, cost_of(groups, dx, dy, w), dx, dy, groups, w,
               cpu::gemm_workspace(stream, dy.dtype(), dx.dtype(), dy.size(1)));
}

void grouped_gemm_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                                  const RowGroups& groups) {
  check(groups, x, dy, dw);
  Cost cost = cost_of(groups, x, dy, dw);
  if (write == Write::accumulate) cost.bytes += bytes_of(dw);
  WITAN_LAUNCH(stream, grouped_gemm_backward_weight, cost, dw, write, dy, x, groups,
               cpu::gemm_workspace(stream, x.dtype(), dw.dtype(), x.size(0)));
}

}  // namespace witan::kernels
