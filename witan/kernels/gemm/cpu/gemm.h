// CPU twins of the matrix products. They get scratch from their caller, because it counts on the meta device too:
// gemm_workspace() in gemm_blocks.h.
#pragma once

#include "witan/kernels/gemm/gemm.h"
#include "witan/kernels/grouped/grouped_gemm.h"

namespace witan::kernels::cpu {

void gemm(Stream& stream, const Tensor& c, Write write, const Tensor& a, Transpose transpose_a, const Tensor& b,
          Transpose transpose_b, const Tensor& workspace);

// to[i,:] = from[index[i] / divisor,:] for the rows i of the groups: what the grouped products then multiply.
void gather_grouped_rows(Stream& stream, const Tensor& to, const Tensor& from, const RowIndex& rows,
                         const RowGroups& groups);
void grouped_gemm_forward(Stream& stream, const Tensor& y, const Tensor& x, const RowGroups& groups, const Tensor& w,
                          const Tensor& workspace);
void grouped_gemm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const RowGroups& groups,
                                 const Tensor& w, const Tensor& workspace);
void grouped_gemm_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                                  const RowGroups& groups, const Tensor& workspace);

}  // namespace witan::kernels::cpu
