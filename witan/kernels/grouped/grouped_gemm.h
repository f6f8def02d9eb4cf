// One matrix product per expert, over rows grouped by expert (tensor/ragged.h). Groups may have any size, 0 included;
// rows outside the groups are neither read nor written. Dtypes, sums and bits as in gemm.h.
// x, dx [capacity, K]   y, dy [capacity, N]   w [E, N, K]   dw [E, N, K] in the gradient dtype.
// Costs are those of groups.expected_rows rows.
//
// The rows of an operand may lie anywhere in another tensor, as those of tokens do in the residual stream: a RowIndex
// says where. They are read there, without a copy of them in the groups' order, and the results have the same bits as
// with one.
#pragma once

#include "witan/kernels/common/launch.h"
#include "witan/tensor/ragged.h"

namespace witan {

// Row i of an operand is row index[i] / divisor of its tensor [M, D]; index [capacity] int64, of which entries outside
// the groups are not read. Undefined: row i is row i.
struct RowIndex {
  Tensor index = {};
  int64_t divisor = 1;

  bool defined() const { return index.defined(); }
  // Rows of the pool, of which `data` are the operand's or hold them.
  int64_t capacity(const Tensor& data) const { return defined() ? index.size(0) : data.size(0); }
};

// The indices of the two operands of a sum over rows; at most one of them is defined.
struct SumRows {
  RowIndex dy = {}, x = {};
};

// The destination of a weight's gradient, and optionally of the sums of its blocks.
struct WeightGradient {
  Tensor dw;
  Write write = Write::overwrite;
  Tensor block_sums = {};  // sums of dw's blocks (kernels/common/block_sums.h); undefined: not wanted
};

// Inputs and outputs of SwiGLU's backward, as in kernels/pointwise/activation.h.
struct SwigluRows {
  Tensor h, s;  // [capacity, 2F] = [gate | up]; [capacity] accumulator dtype, or undefined
};
struct SwigluGradient {
  Tensor dh, ds;  // [capacity, 2F]; [capacity] accumulator dtype, or undefined: not wanted
};

}  // namespace witan

namespace witan::kernels {

// y[i,:] = w[e] x[i,:]  for the rows i of group e
void grouped_gemm_forward(Stream& stream, const Tensor& y, const Tensor& x, const RowGroups& groups, const Tensor& w,
                          const RowIndex& x_rows = {});
WITAN_CUDA_TWIN(grouped_gemm_forward)

// h[i,:] = w[e] x[i,:] = [gate | up],  y[i,:] = silu(gate) up s[i], as swiglu_forward computes it from the rounded h.
// w [E, 2F, K]   h [capacity, 2F]   y [capacity, F]   s [capacity] accumulator dtype, or undefined
void grouped_swiglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& x, const RowGroups& groups,
                            const Tensor& w, const Tensor& s, const RowIndex& x_rows = {});
WITAN_CUDA_TWIN(grouped_swiglu_forward)

// dx[i,:] = w[e]^T dy[i,:]
void grouped_gemm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const RowGroups& groups,
                                 const Tensor& w, const RowIndex& dy_rows = {});
WITAN_CUDA_TWIN(grouped_gemm_backward_input)

// da[i,:] = w[e]^T dy[i,:], rounded,  and dh and ds of swiglu_backward(da, h, s), to the bit but for the order in which
// ds is summed on a GPU; da [capacity, F] has no memory of its own. w [E, N, F]   dy [capacity, N]
void grouped_swiglu_backward(Stream& stream, const SwigluGradient& to, const Tensor& dy, const RowGroups& groups,
                             const Tensor& w, const SwigluRows& of, const RowIndex& dy_rows = {});
inline constexpr int kSwigluDotColumns = 256;  // over which a GPU forms one partial sum of ds
#if WITAN_CUDA
namespace cuda {
// dots [F / kSwigluDotColumns, capacity] float32: room for the parts of ds; undefined where ds is, or for wider dtypes
void grouped_swiglu_backward(Stream& stream, const SwigluGradient& to, const Tensor& dots, const Tensor& dy,
                             const RowGroups& groups, const Tensor& w, const SwigluRows& of, const RowIndex& dy_rows);
}  // namespace cuda
#endif
// dw[e] (=|+=) sum_{i in group e} dy[i,:] x[i,:]^T;  an empty group's is zeros, or stays as it was. Where block sums
// are wanted they are those of dw as it is then, rounded: those of what is added to must be right before, since those
// of an empty group stay too. Squares of 16 bits are summed in float32 within each thread's part of a block on a GPU
// that makes them in the product, otherwise in float64. A product that adds to float32 makes them in a pass over dw.
void grouped_gemm_backward_weight(Stream& stream, const WeightGradient& to, const Tensor& dy, const Tensor& x,
                                  const RowGroups& groups, const SumRows& rows = {});
WITAN_CUDA_TWIN(grouped_gemm_backward_weight)

// Biases of experts. y, dy [capacity, N]   bias [E, M] of y's dtype, added to columns [first, first + M) of y
// s, ds [capacity] accumulator dtype; undefined: 1. Sums in float32 or wider.

// y[i, first + j] += s[i] bias[e,j]  for the rows i of group e
void grouped_bias_forward(Stream& stream, const Tensor& y, const RowGroups& groups, const Tensor& bias, const Tensor& s,
                          int64_t first);
WITAN_KERNEL_TWINS(grouped_bias_forward)

// dbias[e,j] (=|+=) sum_{i in group e} s[i] dy[i, first + j];  dbias [E, M] in the gradient dtype. An empty group's is
// zeros, or stays as it was.
void grouped_bias_backward(Stream& stream, const Tensor& dbias, Write write, const Tensor& dy, const RowGroups& groups,
                           const Tensor& s, int64_t first);
WITAN_KERNEL_TWINS(grouped_bias_backward)

// ds[i] = sum_j dy[i, first + j] bias[e,j]
void grouped_bias_backward_scale(Stream& stream, const Tensor& ds, const Tensor& dy, const RowGroups& groups,
                                 const Tensor& bias, int64_t first);
WITAN_KERNEL_TWINS(grouped_bias_backward_scale)

}  // namespace witan::kernels
