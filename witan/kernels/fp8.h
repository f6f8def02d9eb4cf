// Matrix products of operands in e4m3 (base/e4m3.h) with float32 scales, as DeepSeek-V3 trains (arXiv:2412.19437,
// section 3.3) and Megatron-LM's blockwise recipe does. Activations and gradients have a scale for each 128 numbers
// along the sum, weights one for each 128 by 128. A product of 128 numbers is summed as the hardware sums e4m3, times
// both scales, in float32; these sums are added in float32.
//
// Both operands of a product lie with the sum's dim last. So each of x, dy and w is quantised twice: x by rows for
// y = x w^T and by columns for dw = dy^T x, dy by rows for dx = dy w and by columns for dw, w as it is and transposed.
// The scale of a block is its largest magnitude / 448, of zeros 1. A block with a number that is not finite has the
// scale NaN, so that every sum over it is NaN.
#pragma once

#include "witan/kernels/grouped_gemm.h"
#include "witan/kernels/launch.h"
#include "witan/tensor/ragged.h"

namespace witan::kernels {

inline constexpr int64_t kFp8Block = 128;  // numbers that share a scale
// Rows are copied 16 bytes at a time: K and N of every product are multiples of this.
inline constexpr int64_t kFp8Multiple = 16;

constexpr int64_t fp8_blocks(int64_t numbers) {
  return (numbers + kFp8Block - 1) / kFp8Block;
}

// x [M, K] by rows.
struct Fp8Rows {
  Tensor values;  // [M, K] f8
  Tensor scales;  // [fp8_blocks(K), M] float32

  static Fp8Rows empty(Stream& stream, int64_t M, int64_t K);
};

// Where the blocks of rows are: each group begins with a block of its own, so that no scale depends on who shares the
// pool. Groups of several source ranks have blocks for each source, expert by expert, for the same reason.
struct Fp8RowBlocks {
  RowGroups groups;  // begin, count, source_begin, source_count: in blocks instead of rows. Undefined: one group
  Tensor table;      // [most blocks, 2] int32: the first row of each, and how many it has (0: it is not used)
  int64_t most = 0;  // blocks

  // Of `groups` in a pool of so many rows; without groups, of all rows.
  static Fp8RowBlocks empty(Stream& stream, const RowGroups& groups, int64_t capacity);
};

// x [M, K] by columns: blocks of 128 rows, filled up with zeros.
struct Fp8Columns {
  Tensor values;  // [K, 128 blocks] f8
  Tensor scales;  // [blocks, K] float32

  static Fp8Columns empty(Stream& stream, const Fp8RowBlocks& blocks, int64_t K);
};

// w [E, N, K], or [N, K] as E = 1.
struct Fp8Weights {
  Tensor values;      // [E, N, K] f8, or undefined
  Tensor transposed;  // [E, K, N] f8, or undefined
  Tensor scales;      // [E, fp8_blocks(N), fp8_blocks(K)] float32, of both
};

// Fills in `blocks`, where there are groups.
void fp8_row_blocks(Stream& stream, const Fp8RowBlocks& blocks, const RowGroups& groups);
WITAN_KERNEL_TWINS(fp8_row_blocks)

// x [M, K] by rows or by columns or, in one pass, both: an undefined one is left out. Rows of no group are not written.
// With `x_rows` the rows are those of x that it names, which are read where they lie.
void fp8_quantise(Stream& stream, const Fp8Rows& rows, const Fp8Columns& columns, const Tensor& x,
                  const Fp8RowBlocks& blocks, const RowIndex& x_rows = {});
WITAN_KERNEL_TWINS(fp8_quantise)

// swiglu_forward(h, s) (kernels/activation.h) by rows or by columns or both, to the bit, without its result in memory:
// h [M, 2F], s [M] float32 or undefined; rows and columns are of [M, F].
void fp8_quantise_swiglu(Stream& stream, const Fp8Rows& rows, const Fp8Columns& columns, const Tensor& h,
                         const Tensor& s, const RowGroups& groups, const Fp8RowBlocks& blocks);
WITAN_CUDA_TWIN(fp8_quantise_swiglu)

// The same of swiglu_backward(dy, h, s): rows and columns are of dh [M, 2F]. ds [M] float32, or undefined: not wanted.
struct Fp8SwigluGradient {
  const Tensor &ds, &dy, &h, &s;
};
void fp8_quantise_swiglu_backward(Stream& stream, const Fp8Rows& rows, const Fp8Columns& columns,
                                  const Fp8SwigluGradient& of, const RowGroups& groups, const Fp8RowBlocks& blocks);
#if WITAN_CUDA
namespace cuda {
// dots [F / 128, M] float32: the parts of ds
void fp8_quantise_swiglu_backward(Stream& stream, const Fp8Rows& rows, const Fp8Columns& columns,
                                  const Fp8SwigluGradient& of, const Tensor& dots, const Fp8RowBlocks& blocks);
}  // namespace cuda
#endif

// w [E, N, K] as it is or transposed or, in one pass, both.
void fp8_quantise_weights(Stream& stream, const Fp8Weights& to, const Tensor& w);
WITAN_KERNEL_TWINS(fp8_quantise_weights)

// Of w: y[i,:] = w[e] x[i,:] for the rows i of group e, or of all rows where there are no groups (E = 1); with `turned`
// dx[i,:] = w[e]^T dy[i,:].  y [M, N], x of [M, K] and w of [E, N, K]; turned: dx [M, K], dy of [M, N]. y is float32 or
// bfloat16. Rows of no group stay as they are.
struct Fp8Product {
  const Fp8Rows& rows;
  const Fp8Weights& weights;
  bool turned = false;

  const Tensor& matrices() const { return turned ? weights.transposed : weights.values; }  // [E, columns, steps]
};
void fp8_product(Stream& stream, const Tensor& y, const Fp8Product& product, const RowGroups& groups);
WITAN_KERNEL_TWINS(fp8_product)

// dw[e] (=|+=) sum_{i in group e} dy[i,:] x[i,:]^T;  dw [E, N, K] float32 or bfloat16. `groups` in blocks: those of
// Fp8RowBlocks, or of one of its sources; without groups all rows (E = 1). An empty group's is zeros, or stays.
void fp8_weight_gradient(Stream& stream, const Tensor& dw, Write write, const Fp8Columns& dy, const Fp8Columns& x,
                         const RowGroups& groups);
WITAN_KERNEL_TWINS(fp8_weight_gradient)

}  // namespace witan::kernels
