// The grouped products of 16-bit numbers on the tensor cores of sm_80 and later, where Hopper's own kernels are not to
// be had. An element of a result is summed in the order of the sum, wherever its row lies.
#pragma once

#include "witan/kernels/grouped/grouped_gemm.h"

namespace witan::kernels::cuda {

// As their namesakes of grouped_gemm_plain.h. Both do nothing and return false for dtypes that the tensor cores do not
// take, rows that are not whole pieces of 16 bytes, and more experts than the kernel's table has room for.
bool warp_grouped_lines(Stream& stream, const Tensor& to, const Tensor& from, const RowGroups& groups, const Tensor& w,
                        bool transposed, const RowIndex& from_rows);
bool warp_grouped_sum(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                      const RowGroups& groups, const SumRows& rows);

}  // namespace witan::kernels::cuda
