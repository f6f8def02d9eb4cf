// The grouped products on Hopper's tensor cores, one per file, since each takes long to compile. They need
// takes_grouped(), and their tile follows from shapes alone.
#pragma once

#include "witan/kernels/grouped/grouped_gemm.h"

namespace witan::kernels::cuda {

// Whether the copy engine takes all of these, bfloat16 or float16 matrices whose rows are 16-byte pieces, for so many
// groups.
bool takes_grouped(Stream& stream, const RowGroups& groups, const Tensor& out, const Tensor& a, const Tensor& b);

void hopper_grouped_forward(Stream& stream, const Tensor& y, const Tensor& x, const RowGroups& groups, const Tensor& w);
void hopper_grouped_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const RowGroups& groups,
                                   const Tensor& w);
// dw is float32 where x is float16. No block sums of what is added to in float32.
void hopper_grouped_backward_weight(Stream& stream, const WeightGradient& to, const Tensor& dy, const Tensor& x,
                                    const RowGroups& groups);
void hopper_grouped_swiglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& x,
                                   const RowGroups& groups, const Tensor& w, const Tensor& s, const RowIndex& x_rows);

// dots: the parts of ds by tiles of kSwigluDotColumns columns, or undefined: ds is not wanted. dy_rows may be
// undefined.
void hopper_grouped_swiglu_backward(Stream& stream, const SwigluGradient& to, const Tensor& dots, const Tensor& dy,
                                    const RowGroups& groups, const Tensor& w, const SwigluRows& of,
                                    const RowIndex& dy_rows);

// The same with rows of one operand that an index names (can_gather); the gradient of the weight by which one it is.
void hopper_gathered_forward(Stream& stream, const Tensor& y, const Tensor& x, const RowGroups& groups, const Tensor& w,
                             const RowIndex& x_rows);
void hopper_gathered_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const RowGroups& groups,
                                    const Tensor& w, const RowIndex& dy_rows);
void hopper_gathered_weight_dy(Stream& stream, const WeightGradient& to, const Tensor& dy, const Tensor& x,
                               const RowGroups& groups, const RowIndex& dy_rows);
void hopper_gathered_weight_x(Stream& stream, const WeightGradient& to, const Tensor& dy, const Tensor& x,
                              const RowGroups& groups, const RowIndex& x_rows);

}  // namespace witan::kernels::cuda
