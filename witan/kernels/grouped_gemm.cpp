#include "witan/kernels/grouped_gemm.h"

#include <cassert>

#include "witan/kernels/activation.h"
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

// Of the CPU's kernels; a GPU's have none but the stream's scratch.
Tensor workspace(Stream& stream, DType in, DType out, int64_t K) {
  return stream.plans_for_cuda() ? Tensor() : cpu::gemm_workspace(stream, in, out, K);
}

}  // namespace

void grouped_gemm_forward(Stream& stream, const Tensor& y, const Tensor& x, const RowGroups& groups, const Tensor& w) {
  check(groups, x, y, w);
  const Tensor packed = workspace(stream, x.dtype(), y.dtype(), x.size(1));
  charge(stream, "grouped_gemm_forward", cost_of(groups, x, y, w), [&] {
    if (stream.is_cuda())
      WITAN_CALL_CUDA(grouped_gemm_forward, stream, y, x, groups, w);
    else
      cpu::grouped_gemm_forward(stream, y, x, groups, w, packed);
  });
}

void grouped_swiglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& x, const RowGroups& groups,
                            const Tensor& w, const Tensor& s) {
  if (!stream.plans_for_cuda()) {
    grouped_gemm_forward(stream, h, x, groups, w);
    return swiglu_forward(stream, y, h, s, groups);
  }
  check(groups, x, h, w);
  assert(y.size(0) == h.size(0) && 2 * y.size(1) == h.size(1) && y.dtype() == h.dtype());
  Cost cost = cost_of(groups, x, h, w);
  cost.bytes += static_cast<double>(groups.rows_of(x.size(0)) * y.size(1) * size_of(y.dtype()));
  charge(stream, "grouped_swiglu_forward", cost,
         [&] { WITAN_CALL_CUDA(grouped_swiglu_forward, stream, y, h, x, groups, w, s); });
}

void grouped_gemm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const RowGroups& groups,
                                 const Tensor& w) {
  check(groups, dx, dy, w);
  const Tensor packed = workspace(stream, dy.dtype(), dx.dtype(), dy.size(1));
  charge(stream, "grouped_gemm_backward_input", cost_of(groups, dx, dy, w), [&] {
    if (stream.is_cuda())
      WITAN_CALL_CUDA(grouped_gemm_backward_input, stream, dx, dy, groups, w);
    else
      cpu::grouped_gemm_backward_input(stream, dx, dy, groups, w, packed);
  });
}

void grouped_gemm_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                                  const RowGroups& groups) {
  check(groups, x, dy, dw);
  Cost cost = cost_of(groups, x, dy, dw);
  if (write == Write::accumulate) cost.bytes += bytes_of(dw);
  const Tensor packed = workspace(stream, x.dtype(), dw.dtype(), x.size(0));
  charge(stream, "grouped_gemm_backward_weight", cost, [&] {
    if (stream.is_cuda())
      WITAN_CALL_CUDA(grouped_gemm_backward_weight, stream, dw, write, dy, x, groups);
    else
      cpu::grouped_gemm_backward_weight(stream, dw, write, dy, x, groups, packed);
  });
}

}  // namespace witan::kernels
