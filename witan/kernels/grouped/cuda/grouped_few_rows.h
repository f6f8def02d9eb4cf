// The forward products of experts that have few rows each (kernels/gemm/product_scopes.h). The host decides how many
// blocks there are from the room in the pool; which experts have rows, and how many, the device alone knows.
#pragma once

#include "witan/kernels/grouped/grouped_gemm.h"

namespace witan::kernels::cuda {

// grouped_gemm_forward() and grouped_swiglu_forward() for bfloat16 and float16. False, and nothing was done, for what
// these kernels do not take: pools with room for more rows, rows that are not whole pieces of 16 bytes, or a thread
// that did not ask (FewRows).
bool few_rows_grouped(Stream& stream, const Tensor& y, const Tensor& x, const RowGroups& groups, const Tensor& w,
                      const RowIndex& x_rows = {});
bool few_rows_grouped_swiglu(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& x, const RowGroups& groups,
                             const Tensor& w, const Tensor& s, const RowIndex& x_rows = {});

}  // namespace witan::kernels::cuda
