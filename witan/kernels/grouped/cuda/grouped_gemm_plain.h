// The grouped products without tensor cores: for float32 and float64, and for rows that are not whole pieces of 16
// bytes. An element of a result is one chain of multiply-adds in the order of the sum.
#pragma once

#include "witan/kernels/grouped/grouped_gemm.h"

namespace witan::kernels::cuda {

// to[i,:] = op(w[e]) from[i,:]; `transposed`: w is [E, from's columns, to's].
void plain_grouped_lines(Stream& stream, const Tensor& to, const Tensor& from, const RowGroups& groups, const Tensor& w,
                         bool transposed, const RowIndex& from_rows = {});
void plain_grouped_sum(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                       const RowGroups& groups, const SumRows& rows = {});

}  // namespace witan::kernels::cuda
