#include <cassert>

#include "witan/kernels/common/block_sums.h"
#include "witan/kernels/common/product_observer.h"
#include "witan/kernels/gemm/cpu/gemm_blocks.h"
#include "witan/kernels/grouped/block_sparse.h"
#include "witan/kernels/grouped/cpu/grouped_gemm.h"
#include "witan/kernels/grouped/grouped_gemm.h"
#include "witan/kernels/pointwise/activation.h"

namespace witan::kernels {
namespace {

// One operand of a product, whose rows an index may name.
struct Side {
  const Tensor& data;
  const RowIndex& at;

  int64_t capacity() const { return at.capacity(data); }
  // The bytes of this many rows. Gathered rows come from memory once, however often they are read.
  double bytes(double rows) const {
    const auto each = static_cast<double>(data.size(1) * size_of(data.dtype()));
    return at.defined() ? bytes_of(data) + rows * static_cast<double>(size_of(DType::i64)) : rows * each;
  }
};

// The cost of products between the groups' rows of `x` and `y` and the weights.
Cost cost_of(const RowGroups& groups, const Side& x, const Side& y, const Tensor& w) {
  const auto rows = static_cast<double>(groups.rows_of(x.capacity()));
  const auto K = static_cast<double>(w.size(2)), N = static_cast<double>(w.size(1));
  return {2 * rows * N * K, x.bytes(rows) + y.bytes(rows) + bytes_of(w)};
}

// The shape of a product, with the K and N of its forward.
CallShape shape_of(const RowGroups& groups, const Side& x, const Tensor& w) {
  return {groups.rows_of(x.capacity()), w.size(1), w.size(2), w.size(0)};
}

void check(const RowGroups& groups, const Side& x, const Side& y, const Tensor& w) {
  assert(w.shape().dims() == 3 && groups.experts() == w.size(0) && groups.begin.size(0) == w.size(0));
  assert(x.data.size(1) == w.size(2) && y.data.size(1) == w.size(1) && x.data.dtype() == y.data.dtype());
  assert(x.capacity() == y.capacity() && (!x.at.defined() || !y.at.defined()));
  assert(x.data.stride(1) == 1 && y.data.stride(1) == 1 && w.stride(2) == 1);
}

// The operand as this device's kernels read it: a GPU gathers rows while it reads them, a CPU needs a gathered copy.
Tensor as_read(Stream& stream, const Side& side, const RowGroups& groups) {
  if (!side.at.defined() || stream.plans_for_cuda()) return side.data;
  const Tensor rows = stream.empty({side.capacity(), side.data.size(1)}, side.data.dtype());
  const auto moved = static_cast<double>(groups.rows_of(side.capacity()) * rows.size(1) * size_of(rows.dtype()));
  charge(stream, "gather_grouped_rows", {0, 2 * moved},
         [&] { cpu::gather_grouped_rows(stream, rows, side.data, side.at, groups); });
  return rows;
}

// Whether the product's kernel sums the blocks. It cannot where it adds to float32, because there the copy engine adds
// in memory, and the warps do not see the sums.
bool sums_in_product(Stream& stream, const WeightGradient& to) {
  return stream.plans_for_cuda() && (to.write == Write::overwrite || to.dw.dtype() == DType::bf16);
}

// The CPU kernels' workspace; GPU kernels use only the stream's scratch.
Tensor workspace(Stream& stream, DType in, DType out, int64_t K) {
  return stream.plans_for_cuda() ? Tensor() : cpu::gemm_workspace(stream, in, out, K);
}

// The cost of an operation on the biased columns of the groups' rows; `touched`: how often it moves each element.
Cost cost_of(double flops, double touched, const Tensor& y, const RowGroups& groups, const Tensor& bias) {
  const double elements = static_cast<double>(groups.rows_of(y.size(0))) * static_cast<double>(bias.size(1));
  return {flops * elements, touched * elements * static_cast<double>(size_of(y.dtype())) + bytes_of(bias)};
}

void check([[maybe_unused]] const Tensor& y, [[maybe_unused]] const RowGroups& groups,
           [[maybe_unused]] const Tensor& bias, [[maybe_unused]] int64_t first) {
  assert(y.shape().dims() == 2 && y.contiguous() && bias.shape().dims() == 2 && bias.contiguous());
  assert(bias.size(0) == groups.experts() && first >= 0 && first + bias.size(1) <= y.size(1));
}

Cost block_cost(const BlockTopology& topology, const Tensor& a, const Tensor& b, const Tensor& w) {
  const auto rows = static_cast<double>(topology.groups.rows_of(a.size(0)));
  const auto row_bytes = static_cast<double>(a.size(1) * size_of(a.dtype()) + b.size(1) * size_of(b.dtype()));
  return {2 * rows * static_cast<double>(a.size(1) * b.size(1)),
          rows * row_bytes + bytes_of(w, topology.blocks, topology.first)};
}

void check_blocks(const BlockTopology& topology, const Tensor& x, const Tensor& y, const Tensor& w) {
  assert(w.shape().dims() == 3 && topology.experts() == w.size(0) && x.size(1) == w.size(2) && y.size(1) == w.size(1));
  assert(x.size(0) == y.size(0) && x.dtype() == y.dtype());
  assert(topology.blocks.size(0) == most_block_rows(x.size(0), topology.experts()));
  assert(x.stride(1) == 1 && y.stride(1) == 1 && w.stride(2) == 1);
}

}  // namespace

void grouped_gemm_forward(Stream& stream, const Tensor& y, const Tensor& x, const RowGroups& groups, const Tensor& w,
                          const RowIndex& x_rows) {
  const Side from{x, x_rows}, to{y, {}};
  check(groups, from, to, w);
  if (auto* const observer = ProductObserver::of(stream))
    observer->grouped_product({x, x_rows.index, x_rows.divisor}, groups, w);
  const Tensor read = as_read(stream, from, groups), packed = workspace(stream, x.dtype(), y.dtype(), x.size(1));
  charge(
      stream, "grouped_gemm_forward", cost_of(groups, from, to, w),
      [&] {
        if (stream.is_cuda())
          WITAN_CALL_CUDA(grouped_gemm_forward, stream, y, x, groups, w, x_rows);
        else
          cpu::grouped_gemm_forward(stream, y, read, groups, w, packed);
      },
      shape_of(groups, from, w));
}

void grouped_swiglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& x, const RowGroups& groups,
                            const Tensor& w, const Tensor& s, const RowIndex& x_rows) {
  if (!stream.plans_for_cuda()) {
    grouped_gemm_forward(stream, h, x, groups, w, x_rows);
    return swiglu_forward(stream, y, h, s, groups);
  }
  const Side from{x, x_rows}, to{h, {}};
  check(groups, from, to, w);
  assert(y.size(0) == h.size(0) && 2 * y.size(1) == h.size(1) && y.dtype() == h.dtype());
  Cost cost = cost_of(groups, from, to, w);
  cost.bytes += static_cast<double>(groups.rows_of(h.size(0)) * y.size(1) * size_of(y.dtype()));
  charge(
      stream, "grouped_swiglu_forward", cost,
      [&] { WITAN_CALL_CUDA(grouped_swiglu_forward, stream, y, h, x, groups, w, s, x_rows); },
      shape_of(groups, from, w));
}

void grouped_gemm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const RowGroups& groups,
                                 const Tensor& w, const RowIndex& dy_rows) {
  const Side to{dx, {}}, from{dy, dy_rows};
  check(groups, to, from, w);
  const Tensor read = as_read(stream, from, groups), packed = workspace(stream, dy.dtype(), dx.dtype(), dy.size(1));
  charge(
      stream, "grouped_gemm_backward_input", cost_of(groups, to, from, w),
      [&] {
        if (stream.is_cuda())
          WITAN_CALL_CUDA(grouped_gemm_backward_input, stream, dx, dy, groups, w, dy_rows);
        else
          cpu::grouped_gemm_backward_input(stream, dx, read, groups, w, packed);
      },
      shape_of(groups, to, w));
}

void grouped_swiglu_backward(Stream& stream, const SwigluGradient& to, const Tensor& dy, const RowGroups& groups,
                             const Tensor& w, const SwigluRows& of, const RowIndex& dy_rows) {
  const int64_t capacity = to.dh.size(0), F = w.size(2);
  assert(to.dh.shape() == Shape({capacity, 2 * F}) && of.h.shape() == to.dh.shape() && to.dh.dtype() == of.h.dtype());
  assert(to.dh.contiguous() && of.h.contiguous());
  const Tensor da = to.dh.narrow(1, F, F);  // where the gradients of up will be
  if (!stream.plans_for_cuda()) {
    grouped_gemm_backward_input(stream, da, dy, groups, w, dy_rows);
    return swiglu_backward(stream, to.dh, to.ds, da, of.h, of.s, groups);
  }
  const Side result{da, {}}, from{dy, dy_rows};
  check(groups, result, from, w);
  const int64_t tiles = (F + kSwigluDotColumns - 1) / kSwigluDotColumns;
  const bool sums_tiles = to.ds.defined() && size_of(to.dh.dtype()) == 2;
  const Tensor dots = sums_tiles ? stream.empty({tiles, capacity}, DType::f32) : Tensor();
  Cost cost = cost_of(groups, result, from, w);
  cost.bytes += 3 * static_cast<double>(groups.rows_of(capacity) * F * size_of(to.dh.dtype()));
  charge(
      stream, "grouped_swiglu_backward", cost,
      [&] { WITAN_CALL_CUDA(grouped_swiglu_backward, stream, to, dots, dy, groups, w, of, dy_rows); },
      shape_of(groups, result, w));
}

void grouped_gemm_backward_weight(Stream& stream, const WeightGradient& to, const Tensor& dy, const Tensor& x,
                                  const RowGroups& groups, const SumRows& rows) {
  const Tensor &dw = to.dw, &sums = to.block_sums;
  const Write write = to.write;
  const Side left{dy, rows.dy}, right{x, rows.x};
  check(groups, right, left, dw);
  assert(!sums.defined() || (sums.shape() == block_sums_shape(dw.shape()) && sums.dtype() == DType::f64));
  const bool sums_here = sums.defined() && sums_in_product(stream, to);
  const WeightGradient made{dw, write, sums_here ? sums : Tensor()};
  Cost cost = cost_of(groups, right, left, dw);
  if (write == Write::accumulate) cost.bytes += bytes_of(dw);
  cost.bytes += bytes_of(made.block_sums);
  const Tensor a = as_read(stream, left, groups), b = as_read(stream, right, groups);
  const Tensor packed = workspace(stream, x.dtype(), dw.dtype(), right.capacity());
  charge(
      stream, "grouped_gemm_backward_weight", cost,
      [&] {
        if (stream.is_cuda())
          WITAN_CALL_CUDA(grouped_gemm_backward_weight, stream, made, dy, x, groups, rows);
        else
          cpu::grouped_gemm_backward_weight(stream, dw, write, a, b, groups, packed);
      },
      shape_of(groups, right, dw));
  if (sums.defined() && !sums_here) block_square_sums(stream, sums, dw);
}

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

void block_topology(Stream& stream, const BlockTopology& topology) {
  const Cost cost{0, bytes_of(topology.blocks, topology.first, topology.groups.begin, topology.groups.count)};
  WITAN_LAUNCH(stream, block_topology, cost, topology);
}

void block_rows_product(Stream& stream, const Tensor& to, const Tensor& from, const BlockTopology& topology,
                        const Tensor& w, Transpose transpose_w) {
  const bool forward = transpose_w == Transpose::yes;
  check_blocks(topology, forward ? from : to, forward ? to : from, w);
  const Tensor packed = workspace(stream, from.dtype(), to.dtype(), from.size(1));
  charge(stream, "block_rows_product", block_cost(topology, from, to, w), [&] {
    if (stream.is_cuda())
      WITAN_CALL_CUDA(block_rows_product, stream, to, from, topology, w, transpose_w);
    else
      cpu::block_rows_product(stream, to, from, topology, w, transpose_w, packed);
  });
}

void block_columns_product(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                           const BlockTopology& topology) {
  check_blocks(topology, x, dy, dw);
  Cost cost = block_cost(topology, x, dy, dw);
  if (write == Write::accumulate) cost.bytes += bytes_of(dw);
  const Tensor packed = workspace(stream, x.dtype(), dw.dtype(), x.size(0));
  charge(stream, "block_columns_product", cost, [&] {
    if (stream.is_cuda())
      WITAN_CALL_CUDA(block_columns_product, stream, dw, write, dy, x, topology);
    else
      cpu::block_columns_product(stream, dw, write, dy, x, topology, packed);
  });
}

}  // namespace witan::kernels
