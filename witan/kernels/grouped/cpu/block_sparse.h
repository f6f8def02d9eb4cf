// CPU twins that take scratch memory beside the arguments of kernels/grouped/block_sparse.h (gemm_workspace()).
#pragma once

#include "witan/kernels/grouped/block_sparse.h"

namespace witan::kernels::cpu {

void block_rows_product(Stream& stream, const Tensor& to, const Tensor& from, const BlockTopology& topology,
                        const Tensor& w, Transpose transpose_w, const Tensor& workspace);
void block_columns_product(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                           const BlockTopology& topology, const Tensor& workspace);

}  // namespace witan::kernels::cpu
