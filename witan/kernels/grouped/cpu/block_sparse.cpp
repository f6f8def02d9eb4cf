#include <algorithm>
#include <cassert>
#include <vector>

#include "witan/kernels/gemm/cpu/gemm_blocks.h"
#include "witan/kernels/grouped/cpu/grouped_gemm.h"

namespace witan::kernels::cpu {
namespace {

// A row of BlockTopology::blocks.
struct BlockRow {
  int32_t expert, begin, rows;
};

BlockRow block_row(const BlockTopology& topology, int64_t number) {
  const int32_t* const at = topology.blocks.data<int32_t>() + 3 * number;
  return {at[0], at[1], at[2]};
}

}  // namespace

void block_topology(Stream&, const BlockTopology& topology) {
  const auto begin = topology.groups.begin.span<int64_t>(), count = topology.groups.count.span<int64_t>();
  const auto blocks = topology.blocks.span<int32_t>(), first = topology.first.span<int32_t>();
  size_t next = 0;
  for (size_t e = 0; e < count.size(); ++e) {
    first[e] = static_cast<int32_t>(next);
    for (int64_t done = 0; done < count[e]; done += kBlockRows, ++next) {
      blocks[3 * next] = static_cast<int32_t>(e);
      blocks[3 * next + 1] = static_cast<int32_t>(begin[e] + done);
      blocks[3 * next + 2] = static_cast<int32_t>(std::min(kBlockRows, count[e] - done));
    }
  }
  first[count.size()] = static_cast<int32_t>(next);
  assert(3 * next <= blocks.size());
  std::fill(blocks.begin() + static_cast<ptrdiff_t>(3 * next), blocks.end(), -1);
}

void block_rows_product(Stream& stream, const Tensor& to, const Tensor& from, const BlockTopology& topology,
                        const Tensor& w, Transpose transpose_w, const Tensor& workspace) {
  dispatch_floating(to.dtype(), [&]<class T>() {
    std::vector<Product<T, T>> products;
    for (int64_t b = 0; b < topology.first.data<int32_t>()[topology.experts()]; ++b) {
      const auto [expert, begin, rows] = block_row(topology, b);
      products.push_back({.c = {to.data<T>() + begin * to.stride(0), to.stride(0)},
                          .a = {from.data<T>() + begin * from.stride(0), from.stride(0)},
                          .b = {w.data<T>() + expert * w.stride(0), w.stride(1), transpose_w},
                          .M = rows,
                          .N = to.size(1),
                          .K = from.size(1)});
    }
    multiply(stream, Write::overwrite, products, workspace);
  });
}

// An expert's block rows are adjacent in the pool, so their sum is one product.
void block_columns_product(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                           const BlockTopology& topology, const Tensor& workspace) {
  dispatch_product(x.dtype(), dw.dtype(), [&]<class S, class C>() {
    std::vector<Product<S, C>> products;
    const int32_t* const first = topology.first.data<int32_t>();
    for (int64_t e = 0; e < topology.experts(); ++e) {
      int64_t begin = 0, rows = 0;
      for (int64_t b = first[e]; b < first[e + 1]; ++b) {
        const BlockRow block = block_row(topology, b);
        if (rows == 0) begin = block.begin;
        rows += block.rows;
      }
      products.push_back({.c = {dw.data<C>() + e * dw.stride(0), dw.stride(1)},
                          .a = {dy.data<S>() + begin * dy.stride(0), dy.stride(0), Transpose::yes},
                          .b = {x.data<S>() + begin * x.stride(0), x.stride(0)},
                          .M = dw.size(1),
                          .N = dw.size(2),
                          .K = rows});
    }
    multiply(stream, write, products, workspace);
  });
}

}  // namespace witan::kernels::cpu
