// Products with MegaBlocks' block-sparse matrix (Gale et al., arXiv:2211.15841): the hidden units of all experts side
// by side are a matrix [rows, E F] that is zero except for each row's F columns of its own expert. A block row has 128
// rows of one expert, so that an expert's last one is padded with rows of zeros; the topology lists the blocks that are
// not zero. Those of a block row are adjacent, and are stored as a dense strip [128, F]; zeros, the padding included,
// are not stored, read or written. Any size is allowed, 0 included.
//
//   to = from op(w)   with the block-sparse matrix as `to` (MegaBlocks' SDD) or as `from` (DSD): block_rows_product
//   dw = dy^T x       with it as `x` or as `dy` (DSD of the transpose, and DDS): block_columns_product
//
// These products stay beside the grouped ones because of GPUs other than Hopper: without Hopper's kernels an MoE step
// takes 106.5 ms with them and 116.2 ms with the grouped products, whose gradients of weights look up gathered rows
// while they copy them (docs/performance.md, "GPUs other than Hopper").
//
// x, dx [capacity, K]   y, dy [capacity, N]   w [E, N, K]   dw [E, N, K] in the gradient dtype. Rows outside the groups
// are neither read nor written. On a CPU results have the bits of grouped_gemm.h. Costs are computed for
// groups.expected_rows rows.
#pragma once

#include "witan/kernels/common/launch.h"
#include "witan/kernels/gemm/gemm.h"
#include "witan/tensor/ragged.h"

namespace witan::kernels {

inline constexpr int64_t kBlockRows = 128;

struct BlockTopology {
  Tensor
      blocks;  // [B, 3] int32, of each block row: its expert (-1: behind the last), first row, and rows that are there
  Tensor first;  // [E + 1] int32: the block rows of expert e are first[e] … first[e + 1] - 1, its columns' blocks
  RowGroups groups;

  int64_t experts() const { return first.size(0) - 1; }
};

// The most block rows that the groups in a pool of this capacity may need.
constexpr int64_t most_block_rows(int64_t capacity, int64_t experts) {
  return (capacity + experts * (kBlockRows - 1)) / kBlockRows;
}

// Writes topology.blocks and topology.first for topology.groups.
void block_topology(Stream& stream, const BlockTopology& topology);
WITAN_KERNEL_TWINS(block_topology)

// to[i,:] = from[i,:] w[e]^T (Transpose::yes: from x to y) or from[i,:] w[e] (from dy to dx), block row by block row
void block_rows_product(Stream& stream, const Tensor& to, const Tensor& from, const BlockTopology& topology,
                        const Tensor& w, Transpose transpose_w);
WITAN_CUDA_TWIN(block_rows_product)

// dw[e] (=|+=) sum over the block rows of expert e of dy[block,:]^T x[block,:]; 0, or unchanged, if it has none
void block_columns_product(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                           const BlockTopology& topology);
WITAN_CUDA_TWIN(block_columns_product)

}  // namespace witan::kernels
