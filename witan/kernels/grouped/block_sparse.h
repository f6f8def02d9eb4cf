// Products with MegaBlocks' block-sparse matrix (Gale et al., arXiv:2211.15841): the hidden units of all experts side
// by side are a matrix [rows, E F] that is zero but for each row's F columns of its own expert. Its blocks are of 128
// rows, all of one expert, so that an expert's last block is padded with rows of zeros; the topology says which blocks
// are not zero. Those of a block row lie side by side, and are kept as the columns of a dense strip [128, F]; of zeros,
// the padding included, nothing is stored, read or written. Any size is allowed, 0 included.
//
//   to = from op(w)   with the matrix as `to` (MegaBlocks' SDD) or as `from` (DSD): block_rows_product
//   dw = dy^T x       with it as `x` or as `dy` (DSD of the transposed, and DDS): block_columns_product
//
// x, dx [capacity, K]   y, dy [capacity, N]   w [E, N, K]   dw [E, N, K] in the gradient dtype. Rows outside the groups
// are neither read nor written. Sums as in grouped_gemm.h: on a CPU of the same bits. Costs are those of
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

// Block rows that groups in a pool of so many rows may need.
constexpr int64_t most_block_rows(int64_t capacity, int64_t experts) {
  return (capacity + experts * (kBlockRows - 1)) / kBlockRows;
}

// Writes topology.blocks and topology.first of its groups.
void block_topology(Stream& stream, const BlockTopology& topology);
WITAN_KERNEL_TWINS(block_topology)

// to[i,:] = from[i,:] w[e]^T (Transpose::yes: from x to y) or from[i,:] w[e] (from dy to dx), block row by block row
void block_rows_product(Stream& stream, const Tensor& to, const Tensor& from, const BlockTopology& topology,
                        const Tensor& w, Transpose transpose_w);
WITAN_CUDA_TWIN(block_rows_product)

// dw[e] (=|+=) sum over the block rows of expert e of dy[block,:]^T x[block,:]; without any zeros, or as it was
void block_columns_product(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                           const BlockTopology& topology);
WITAN_CUDA_TWIN(block_columns_product)

}  // namespace witan::kernels
