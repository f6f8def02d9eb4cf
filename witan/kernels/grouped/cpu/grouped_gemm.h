// CPU twins of the grouped and block-sparse products. Callers pass their workspace, gemm_workspace() of
// gemm/cpu/gemm_blocks.h, so that the meta device counts it too.
#pragma once

#include "witan/kernels/grouped/block_sparse.h"
#include "witan/kernels/grouped/grouped_gemm.h"

namespace witan::kernels::cpu {

// to[i,:] = from[index[i] / divisor,:] for the rows i of the groups. The grouped products then read `to`.
void gather_grouped_rows(Stream& stream, const Tensor& to, const Tensor& from, const RowIndex& rows,
                         const RowGroups& groups);
void grouped_gemm_forward(Stream& stream, const Tensor& y, const Tensor& x, const RowGroups& groups, const Tensor& w,
                          const Tensor& workspace);
void grouped_gemm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const RowGroups& groups,
                                 const Tensor& w, const Tensor& workspace);
void grouped_gemm_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                                  const RowGroups& groups, const Tensor& workspace);

void block_rows_product(Stream& stream, const Tensor& to, const Tensor& from, const BlockTopology& topology,
                        const Tensor& w, Transpose transpose_w, const Tensor& workspace);
void block_columns_product(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                           const BlockTopology& topology, const Tensor& workspace);

}  // namespace witan::kernels::cpu
