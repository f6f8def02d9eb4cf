// Matrix products of operands in e4m3, gradients perhaps in e5m2 (base/numbers/float8.h), with float32 scales, as in
// DeepSeek-V3 (arXiv:2412.19437, section 3.3) and Megatron-LM's recipes. Activations and gradients have a scale for
// each 128 numbers along K, weights one for each 128 by 128. The hardware sums a product of 128 8-bit numbers; times
// both scales, these sums are added in float32.
//
// Both operands of a product have K as their last dim. So each of x, dy and w is quantised twice: x by rows for
// y = x w^T and by columns for dw = dy^T x, dy by rows for dx = dy w and by columns for dw, w plain and transposed. The
// scale of a block is its largest magnitude / 448 (e5m2: 57344), or 1 for zeros. Alternatively all blocks of a tensor
// have the scale of a given magnitude, beyond which numbers saturate. A block with a number that is not finite has the
// scale NaN, so that every sum over it is NaN.
#pragma once

#include "witan/kernels/common/fp8_scale.h"
#include "witan/kernels/common/launch.h"
#include "witan/kernels/grouped/grouped_gemm.h"
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
  Fp8Format format = Fp8Format::e4m3;

  static Fp8Rows empty(Stream& stream, int64_t M, int64_t K, Fp8Format format = Fp8Format::e4m3);
};

// The blocks of rows. Each group begins with a new block, so that no scale depends on the other groups in the pool. For
// the same reason groups of several source ranks have blocks for each source, expert by expert.
struct Fp8RowBlocks {
  RowGroups groups;  // begin, count, source_begin, source_count: in blocks instead of rows. Undefined: one group
  Tensor table;      // [most blocks, 2] int32: the first row of each, and its number of rows (0: unused)
  int64_t most = 0;  // blocks

  // Groups by source, expert by expert: group e R + r is expert e's of source r; 1 without groups.
  int64_t number() const { return groups.begin.defined() ? groups.experts() * groups.sources() : 1; }

  // The blocks of `groups` in a pool of this capacity; without groups, of all rows.
  static Fp8RowBlocks empty(Stream& stream, const RowGroups& groups, int64_t capacity);
};

// x [M, K] by columns: blocks of 128 rows, filled up with zeros.
struct Fp8Columns {
  Tensor values;  // [K, 128 blocks] f8
  Tensor scales;  // [blocks, K] float32
  Fp8Format format = Fp8Format::e4m3;

  static Fp8Columns empty(Stream& stream, const Fp8RowBlocks& blocks, int64_t K, Fp8Format format = Fp8Format::e4m3);
};

// w [E, N, K], or [N, K] as E = 1, in e4m3.
struct Fp8Weights {
  Tensor values;      // [E, N, K] f8, or undefined
  Tensor transposed;  // [E, K, N] f8, or undefined
  Tensor scales;      // [E, fp8_blocks(N), fp8_blocks(K)] float32, of both
};

// Fills in `blocks` if there are groups.
void fp8_row_blocks(Stream& stream, const Fp8RowBlocks& blocks, const RowGroups& groups);
WITAN_KERNEL_TWINS(fp8_row_blocks)

// The rows of x that are quantised, and the magnitudes by which they are scaled.
struct Fp8Given {
  RowIndex rows = {};   // gathers these rows of x; undefined: all rows
  Tensor largest = {};  // [blocks.number()] float32: the magnitude of each group; undefined: blocks have their own
};

// Quantises x [M, K] by rows, by columns or, in one pass, both; an undefined result is left out. Rows outside the
// groups are not written. Both results have one format.
void fp8_quantise(Stream& stream, const Fp8Rows& rows, const Fp8Columns& columns, const Tensor& x,
                  const Fp8RowBlocks& blocks, const Fp8Given& given = {});
WITAN_KERNEL_TWINS(fp8_quantise)

// amax[g] becomes the larger of itself and the largest magnitude of group g's rows of x [M, K], a NaN being larger than
// all; amax [blocks.number()] float32.
void fp8_amax(Stream& stream, const Tensor& amax, const Tensor& x, const Fp8RowBlocks& blocks,
              const RowIndex& x_rows = {});
WITAN_KERNEL_TWINS(fp8_amax)

// The largest magnitude of each matrix of w [E, N, K]; amax [E].
void fp8_weight_amax(Stream& stream, const Tensor& amax, const Tensor& w);
WITAN_KERNEL_TWINS(fp8_weight_amax)

// Delayed scaling (Transformer Engine's DelayedScaling): tensors are scaled by the magnitudes of earlier steps.
// seen[e] becomes the largest of itself and amax[e, ..], unless it is undefined; then amax[e, ..] becomes reference[e]
// where that is above 0: a tensor without a history is scaled by its own. amax [E R] float32; seen, reference [E].
void fp8_delay(Stream& stream, const Tensor& amax, const Tensor& seen, const Tensor& reference);
WITAN_KERNEL_TWINS(fp8_delay)

// The magnitudes for the next step, after a step that is not skipped: history[(update - 1) % H] becomes amax, and
// reference[i] becomes factor times the largest of history[.., i] (of amax[i] without a history), if that is above 0
// and finite. reference, amax [n] float32; history [H, n] float32, or undefined; step: kernels/common/step_report.h.
struct Fp8History {
  const Tensor &reference, &history, &amax;
};
void fp8_next_references(Stream& stream, const Fp8History& of, const Tensor& step, double factor);
WITAN_KERNEL_TWINS(fp8_next_references)

// swiglu_forward(h, s) (kernels/pointwise/activation.h) by rows or by columns or both, to the bit, without its result
// in memory: h [M, 2F], s [M] float32 or undefined; rows and columns are of [M, F].
void fp8_quantise_swiglu(Stream& stream, const Fp8Rows& rows, const Fp8Columns& columns, const Tensor& h,
                         const Tensor& s, const RowGroups& groups, const Fp8RowBlocks& blocks);
WITAN_CUDA_TWIN(fp8_quantise_swiglu)

// Gradients of SwiGLU, swiglu_backward(dy, h, s), are quantised in the same way: rows and columns are of dh [M, 2F]. ds
// [M] float32, or undefined if not wanted.
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

// Quantises w [E, N, K] plain, transposed or, in one pass, both. largest [E] float32: the magnitude of each matrix, or
// undefined, as in Fp8Given.
void fp8_quantise_weights(Stream& stream, const Fp8Weights& to, const Tensor& w, const Tensor& largest = {});
WITAN_KERNEL_TWINS(fp8_quantise_weights)

// A product with w: y[i,:] = w[e] x[i,:] for the rows i of group e, or for all rows without groups (E = 1); with
// `turned` dx[i,:] = w[e]^T dy[i,:].  y [M, N], x of [M, K] and w of [E, N, K]; turned: dx [M, K], dy of [M, N]. y is
// float32 or bfloat16. Rows outside the groups are not written.
struct Fp8Product {
  const Fp8Rows& rows;
  const Fp8Weights& weights;
  bool turned = false;

  const Tensor& matrices() const { return turned ? weights.transposed : weights.values; }  // [E, N, K] of the product
};
void fp8_product(Stream& stream, const Tensor& y, const Fp8Product& product, const RowGroups& groups);
WITAN_KERNEL_TWINS(fp8_product)

// dw[e] (=|+=) sum_{i in group e} dy[i,:] x[i,:]^T;  dw [E, N, K] float32 or bfloat16. `groups` in blocks: those of
// Fp8RowBlocks, or of one of its sources; without groups all rows (E = 1). An empty group's is zeros, or stays.
void fp8_weight_gradient(Stream& stream, const Tensor& dw, Write write, const Fp8Columns& dy, const Fp8Columns& x,
                         const RowGroups& groups);
WITAN_KERNEL_TWINS(fp8_weight_gradient)

}  // namespace witan::kernels
