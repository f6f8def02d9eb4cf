// The implementations of the grouped products on a GPU: on Hopper's tensor cores, on those of sm_80 and later, without
// tensor cores, and for few rows. The sources of Hopper's are apart because each takes long to compile.
#pragma once

#include "witan/kernels/grouped/grouped_gemm.h"

namespace witan::kernels::cuda {

// Whether the Hopper kernels below take these matrices and groups: bfloat16 or float16, rows that are multiples of 16
// bytes, and no more groups than their table holds. Only shapes decide their tiles.
bool takes_grouped(Stream& stream, const RowGroups& groups, const Tensor& out, const Tensor& a, const Tensor& b);

void hopper_grouped_forward(Stream& stream, const Tensor& y, const Tensor& x, const RowGroups& groups, const Tensor& w);
void hopper_grouped_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const RowGroups& groups,
                                   const Tensor& w);
// dw is float32 if x is float16. There are no block sums if it is accumulated in float32.
void hopper_grouped_backward_weight(Stream& stream, const WeightGradient& to, const Tensor& dy, const Tensor& x,
                                    const RowGroups& groups);
void hopper_grouped_swiglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& x,
                                   const RowGroups& groups, const Tensor& w, const Tensor& s, const RowIndex& x_rows);

// dots: the parts of ds by tiles of kSwigluDotColumns columns; undefined if ds is not wanted. dy_rows may be undefined.
void hopper_grouped_swiglu_backward(Stream& stream, const SwigluGradient& to, const Tensor& dots, const Tensor& dy,
                                    const RowGroups& groups, const Tensor& w, const SwigluRows& of,
                                    const RowIndex& dy_rows);

// These gather the rows of one operand by an index (can_gather): for the gradient of the weight those of dy or of x.
void hopper_gathered_forward(Stream& stream, const Tensor& y, const Tensor& x, const RowGroups& groups, const Tensor& w,
                             const RowIndex& x_rows);
void hopper_gathered_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const RowGroups& groups,
                                    const Tensor& w, const RowIndex& dy_rows);
void hopper_gathered_weight_dy(Stream& stream, const WeightGradient& to, const Tensor& dy, const Tensor& x,
                               const RowGroups& groups, const RowIndex& dy_rows);
void hopper_gathered_weight_x(Stream& stream, const WeightGradient& to, const Tensor& dy, const Tensor& x,
                              const RowGroups& groups, const RowIndex& x_rows);

// grouped_gemm_forward() and grouped_swiglu_forward() for experts with few rows each (kernels/gemm/product_scopes.h),
// in bfloat16 and float16. The host launches blocks for the capacity of the pool; only the device knows which experts
// have rows. They return false, and do nothing, for pools of a larger capacity, rows that are not multiples of 16
// bytes, a thread without FewRows or, within RowProducts, products that the Hopper kernels do not take.
bool few_rows_grouped(Stream& stream, const Tensor& y, const Tensor& x, const RowGroups& groups, const Tensor& w,
                      const RowIndex& x_rows = {});
bool few_rows_grouped_swiglu(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& x, const RowGroups& groups,
                             const Tensor& w, const Tensor& s, const RowIndex& x_rows = {});

// The grouped products without tensor cores: for float32 and float64, and for rows that are not multiples of 16 bytes.
// An element of a result is one chain of multiply-adds in the order of the sum.

// to[i,:] = op(w[e]) from[i,:]; `transposed`: w is [E, columns of from, columns of to].
void plain_grouped_rows(Stream& stream, const Tensor& to, const Tensor& from, const RowGroups& groups, const Tensor& w,
                        bool transposed, const RowIndex& from_rows = {});
void plain_grouped_sum(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                       const RowGroups& groups, const SumRows& rows = {});

// Both for 16-bit numbers on the tensor cores of sm_80 and later, where Hopper's kernels are not available. An
// element of a result is summed in the order of the sum, wherever its row lies. They return false, and do nothing, for
// other dtypes, rows that are not multiples of 16 bytes, and more experts than their table has room for.
bool warp_grouped_rows(Stream& stream, const Tensor& to, const Tensor& from, const RowGroups& groups, const Tensor& w,
                       bool transposed, const RowIndex& from_rows);
bool warp_grouped_sum(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                      const RowGroups& groups, const SumRows& rows);

}  // namespace witan::kernels::cuda
