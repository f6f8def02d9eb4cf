#include "witan/kernels/activation.h"
#include "witan/kernels/cuda/grouped/grouped_few_rows.h"
#include "witan/kernels/cuda/grouped/grouped_gemm_hopper.cuh"
#include "witan/kernels/cuda/grouped/grouped_gemm_plain.h"
#include "witan/kernels/cuda/grouped/hopper_grouped_gemm.h"
#include "witan/kernels/grouped_gemm.h"

namespace witan::kernels::cuda {
namespace {

// Rows that can be stored 16 bytes at a time.
bool stores_packs(const Tensor& out) {
  const int64_t pack = 16 / size_of(out.dtype());
  const int dims = out.shape().dims();
  bool whole = reinterpret_cast<uintptr_t>(out.raw()) % 16 == 0 && out.size(dims - 1) % 8 == 0;
  for (int dim = 0; dim + 1 < dims; ++dim) whole = whole && out.stride(dim) % pack == 0;
  return whole;
}

// Whether the product waits for memory, so that an activation in its epilogue saves a pass over the result. A long sum
// waits for the tensor cores, which the epilogue holds up; a few rows have tiles of their own.
bool pays_to_activate(const RowGroups& groups, const Tensor& x) {
  constexpr int64_t kShortSum = 1024;
  return x.size(1) <= kShortSum && groups.rows_of(x.size(0)) > 64 * groups.experts();
}

}  // namespace

bool takes_grouped(Stream& stream, const RowGroups& groups, const Tensor& out, const Tensor& a, const Tensor& b) {
  return is_hopper(stream) && groups.experts() <= kMostGroups && can_map(a) && can_map(b) && stores_packs(out);
}

void grouped_gemm_forward(Stream& stream, const Tensor& y, const Tensor& x, const RowGroups& groups, const Tensor& w) {
  if (few_rows_grouped(stream, y, x, groups, w)) return;
  if (takes_grouped(stream, groups, y, x, w))
    hopper_grouped_forward(stream, y, x, groups, w);
  else
    plain_grouped_lines(stream, y, x, groups, w, false);
}

void grouped_swiglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& x, const RowGroups& groups,
                            const Tensor& w, const Tensor& s) {
  if (few_rows_grouped_swiglu(stream, y, h, x, groups, w, s)) return;
  if (pays_to_activate(groups, x) && takes_grouped(stream, groups, h, x, w) && stores_packs(y))
    return hopper_grouped_swiglu_forward(stream, y, h, x, groups, w, s);
  grouped_gemm_forward(stream, h, x, groups, w);
  swiglu_forward(stream, y, h, s, groups);
}

void grouped_gemm_backward_input(Stream& stream, const Tensor& dx, const Tensor& dy, const RowGroups& groups,
                                 const Tensor& w) {
  if (takes_grouped(stream, groups, dx, dy, w))
    hopper_grouped_backward_input(stream, dx, dy, groups, w);
  else
    plain_grouped_lines(stream, dx, dy, groups, w, true);
}

void grouped_gemm_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                                  const RowGroups& groups) {
  if (takes_grouped(stream, groups, dw, dy, x) && dw.dtype() != DType::f16)
    hopper_grouped_backward_weight(stream, dw, write, dy, x, groups);
  else
    plain_grouped_sum(stream, dw, write, dy, x, groups);
}

}  // namespace witan::kernels::cuda
