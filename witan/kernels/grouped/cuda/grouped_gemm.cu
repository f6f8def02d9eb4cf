#include "witan/kernels/common/block_sums.h"
#include "witan/kernels/grouped/cuda/grouped_gemm.h"
#include "witan/kernels/grouped/cuda/grouped_gemm_hopper.cuh"
#include "witan/kernels/grouped/grouped_gemm.h"
#include "witan/kernels/pointwise/activation.h"

namespace witan::kernels::cuda {
namespace {

// Whether rows can be stored 16 bytes at a time.
bool stores_packs(const Tensor& out) {
  const int64_t pack = 16 / size_of(out.dtype());
  const int dims = out.shape().dims();
  bool whole = reinterpret_cast<uintptr_t>(out.raw()) % 16 == 0 && out.size(dims - 1) % 8 == 0;
  for (int dim = 0; dim + 1 < dims; ++dim) whole = whole && out.stride(dim) % pack == 0;
  return whole;
}

// Whether the product's epilogue should also compute the activation, which saves a pass over the result. It should not
// for few rows, which have tiles of their own, nor for few columns, which would leave half of the wide tile empty.
bool pays_to_activate(const RowGroups& groups, const Tensor& h) {
  return h.size(1) > 128 && groups.rows_of(h.size(0)) > 64 * groups.experts();
}

// Whether the epilogue of the backward product should also compute the activation's gradient. This saves a pass over
// five rows of memory, where the forward saves two, beside a product of half the size. So it pays even for longer sums,
// but not if half of the wide tile would have no columns. Only shapes decide, so that the number of rows does not
// change the order in which the gradient of a row's weight is summed.
bool pays_to_differentiate(const Tensor& dy, const Tensor& w) {
  constexpr int64_t kLongSum = 4096;
  return dy.size(1) <= kLongSum && w.size(2) > kSwigluDotColumns / 2;
}

bool takes_rows(const Tensor& operand, const RowIndex& rows) {
  return !rows.defined() || can_gather(operand, rows);
}

// The products that Hopper's kernels do not support.
void other_rows(Stream& stream, const Tensor& to, const Tensor& from, const RowGroups& groups, const Tensor& w,
                bool transposed, const RowIndex& rows) {
  if (!warp_grouped_rows(stream, to, from, groups, w, transposed, rows))
    plain_grouped_rows(stream, to, from, groups, w, transposed, rows);
}
void other_sum(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
               const RowGroups& groups, const SumRows& rows) {
  if (!warp_grouped_sum(stream, dw, write, dy, x, groups, rows))
    plain_grouped_sum(stream, dw, write, dy, x, groups, rows);
}

}  // namespace

bool takes_grouped(Stream& stream, const RowGroups& groups, const Tensor& out, const Tensor& a, const Tensor& b) {
  return is_hopper(stream) && groups.experts() <= kMostGroups && can_map(a) && can_map(b) && stores_packs(out);
}

void grouped_gemm_forward(Stream& stream, const Tensor& y, const Tensor& x, const RowGroups& groups, const Tensor& w,
                          const RowIndex& x_rows) {
  if (few_rows_grouped(stream, y, x, groups, w, x_rows)) return;
  if (!takes_grouped(stream, groups, y, x, w) || !takes_rows(x, x_rows))
    return other_rows(stream, y, x, groups, w, false, x_rows);
  if (x_rows.defined())
    hopper_gathered_forward(stream, y, x, groups, w, x_rows);
  else
    hopper_grouped_forward(stream, y, x, groups, w);
}

void grouped_swiglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& x, const RowGroups& groups,
                            const Tensor& w, const Tensor& s, const RowIndex& x_rows) {
  if (few_rows_grouped_swiglu(stream, y, h, x, groups, w, s, x_rows)) return;
  if (pays_to_activate(groups, h) && takes_grouped(stream, groups, h, x, w) && takes_rows(x, x_rows) && stores_packs(y))
    return hopper_grouped_swiglu_forward(stream, y, h, x, groups, w, s, x_rows);
  grouped_gemm_forward(stream, h, x, groups, w, x_rows);
  swiglu_forward(stream, y, h, s, groups);
}

void grouped_gemm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const RowGroups& groups,
                                 const Tensor& w, const RowIndex& dy_rows) {
  if (!takes_grouped(stream, groups, dx, dy, w) || !takes_rows(dy, dy_rows))
    return other_rows(stream, dx, dy, groups, w, true, dy_rows);
  if (dy_rows.defined())
    hopper_gathered_backward_input(stream, dx, dy, groups, w, dy_rows);
  else
    hopper_grouped_backward_input(stream, dx, dy, groups, w);
}

void grouped_swiglu_backward(Stream& stream, const SwigluGradient& to, const Tensor& dots, const Tensor& dy,
                             const RowGroups& groups, const Tensor& w, const SwigluRows& of, const RowIndex& dy_rows) {
  const Tensor da = to.dh.narrow(1, w.size(2), w.size(2));
  if (pays_to_differentiate(dy, w) && takes_grouped(stream, groups, da, dy, w) && takes_rows(dy, dy_rows) &&
      stores_packs(to.dh) && stores_packs(of.h))
    return hopper_grouped_swiglu_backward(stream, to, dots, dy, groups, w, of, dy_rows);
  grouped_gemm_backward_input(stream, da, dy, groups, w, dy_rows);
  swiglu_backward(stream, to.dh, to.ds, da, of.h, of.s, groups);
}

void grouped_gemm_backward_weight(Stream& stream, const WeightGradient& to, const Tensor& dy, const Tensor& x,
                                  const RowGroups& groups, const SumRows& rows) {
  const Tensor& dw = to.dw;
  const bool takes = takes_grouped(stream, groups, dw, dy, x) && takes_rows(dy, rows.dy) && takes_rows(x, rows.x);
  if (!takes || dw.dtype() == DType::f16) {
    other_sum(stream, dw, to.write, dy, x, groups, rows);
    if (to.block_sums.defined()) block_square_sums(stream, to.block_sums, dw);
    return;
  }
  if (rows.dy.defined())
    hopper_gathered_weight_dy(stream, to, dy, x, groups, rows.dy);
  else if (rows.x.defined())
    hopper_gathered_weight_x(stream, to, dy, x, groups, rows.x);
  else
    hopper_grouped_backward_weight(stream, to, dy, x, groups);
}

}  // namespace witan::kernels::cuda
