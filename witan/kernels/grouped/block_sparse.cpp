#include "witan/kernels/grouped/block_sparse.h"

#include <cassert>

#include "witan/kernels/gemm/cpu/gemm_blocks.h"
#include "witan/kernels/grouped/cpu/block_sparse.h"

namespace witan::kernels {
namespace {

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

// Of the CPU's kernels.
Tensor block_workspace(Stream& stream, DType in, DType out, int64_t depth) {
  return stream.plans_for_cuda() ? Tensor() : cpu::gemm_workspace(stream, in, out, depth);
}

}  // namespace

void block_topology(Stream& stream, const BlockTopology& topology) {
  const Cost cost{0, bytes_of(topology.blocks, topology.first, topology.groups.begin, topology.groups.count)};
  WITAN_LAUNCH(stream, block_topology, cost, topology);
}

void block_rows_product(Stream& stream, const Tensor& to, const Tensor& from, const BlockTopology& topology,
                        const Tensor& w, Transpose transpose_w) {
  const bool forward = transpose_w == Transpose::yes;
  check_blocks(topology, forward ? from : to, forward ? to : from, w);
  const Tensor packed = block_workspace(stream, from.dtype(), to.dtype(), from.size(1));
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
  const Tensor packed = block_workspace(stream, x.dtype(), dw.dtype(), x.size(0));
  charge(stream, "block_columns_product", cost, [&] {
    if (stream.is_cuda())
      WITAN_CALL_CUDA(block_columns_product, stream, dw, write, dy, x, topology);
    else
      cpu::block_columns_product(stream, dw, write, dy, x, topology, packed);
  });
}

}  // namespace witan::kernels
