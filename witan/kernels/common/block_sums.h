// Sums of squares, and numbers of zeros, of stacks of matrices by blocks of 16 rows and 128 columns: what one warp
// has of any tile of a grouped product, so that it sums what it stores by itself (grouped_gemm.h), and no block depends
// on the tile. The last blocks of rows and columns may be smaller.
#pragma once

#include <span>
#include <vector>

#include "witan/kernels/common/launch.h"

namespace witan::kernels {

inline constexpr int64_t kSummedRows = 16, kSummedColumns = 128;

// The blocks of a matrix [N, K]. Block b begins at row b / across kSummedRows and column b % across kSummedColumns.
struct SummedBlocks {
  int64_t down, across;
  static constexpr SummedBlocks of(int64_t N, int64_t K) {
    return {(N + kSummedRows - 1) / kSummedRows, (K + kSummedColumns - 1) / kSummedColumns};
  }
  int64_t count() const { return down * across; }
};

// The shape of the sums of a stack [E, N, K]: [E, blocks, 2].
inline Shape block_sums_shape(const Shape& stack) {
  return {stack[0], SummedBlocks::of(stack[1], stack[2]).count(), 2};
}

// sums[e, b, :] = (sum of squares, number of zeros) of block b of x[e];  x [E, N, K] floating, whose columns are
// adjacent, sums of block_sums_shape, float64
void block_square_sums(Stream& stream, const Tensor& sums, const Tensor& x);
WITAN_KERNEL_TWINS(block_square_sums)

// sums[first_row + e R + r, :] = sum_b blocks[e, b, :] over the r-th of R runs of an expert's blocks, as even as whole
// blocks can be;  blocks [E, B, 2], sums [C, 2] float64. Of many stacks at once: a GPU finds them in a table of
// addresses, int64 [items, kAddBlocksColumns], which holds add_blocks_table(items) and must be written before;
// undefined on the CPU.
struct AddBlocksItem {
  Tensor blocks;
  int64_t rows;  // R
  int64_t first_row;
};
inline constexpr int64_t kAddBlocksColumns = 5;
std::vector<int64_t> add_blocks_table(std::span<const AddBlocksItem> items);
void add_blocks_all(Stream& stream, const Tensor& sums, std::span<const AddBlocksItem> items, const Tensor& table);
WITAN_KERNEL_TWINS(add_blocks_all)

// A row of the table of add_blocks_all().
struct AddBlocksRow {
  int64_t blocks;       // address
  int64_t each, rows;   // blocks and rows of an expert
  int64_t first_chunk;  // of its rows, counted over all stacks
  int64_t first_row;    // of the sums
};
static_assert(sizeof(AddBlocksRow) == kAddBlocksColumns * sizeof(int64_t));

}  // namespace witan::kernels
