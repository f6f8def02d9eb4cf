#include <cassert>

#include "witan/kernels/gemm/gemm.h"
#include "witan/kernels/moe/wide_linear.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan::kernels {
namespace {

// Whether one kernel takes a product of `narrow` [T, D] and [E, D]. Shapes and the planned device alone decide: the
// other way takes workspaces, which the meta device must take too.
bool is_fused(Stream& stream, const Tensor& narrow, int64_t E) {
  const int64_t D = narrow.size(1);
  return stream.plans_for_cuda() && narrow.dtype() == DType::bf16 && D % 8 == 0 && E % 8 == 0 && D * E > 0;
}

// What a CUDA stream runs; a meta stream that stands for one counts it.
template <class Work>
void charge_fused(Stream& stream, const char* name, const Tensor& x, int64_t E, double bytes, const Work& work) {
  charge(stream, name, {2.0 * static_cast<double>(x.elements()) * static_cast<double>(E), bytes}, work);
}

// x, in `dtype`.
Tensor in_dtype(Stream& stream, const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  const Tensor out = stream.empty(x.shape(), dtype, MemoryTag::workspace);
  cast(stream, out, x);
  return out;
}

}  // namespace

void wide_linear(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& w) {
  assert(x.contiguous() && w.contiguous() && y.contiguous() && w.dtype() == accumulator(x.dtype()));
  assert(y.dtype() == w.dtype() && y.size(0) == x.size(0) && y.size(1) == w.size(0) && x.size(1) == w.size(1));
  const int64_t E = w.size(0);
  if (is_fused(stream, x, E))
    return charge_fused(stream, "wide_linear", x, E, bytes_of(y, x, w),
                        [&] { WITAN_CALL_CUDA(wide_linear, stream, y, x, w); });
  gemm(stream, y, Write::overwrite, in_dtype(stream, x, w.dtype()), Transpose::no, w, Transpose::yes);
}

void wide_linear_backward_input(Stream& stream, const Tensor& dx, Write write, const Tensor& dy, const Tensor& w) {
  assert(dx.contiguous() && dy.contiguous() && w.contiguous() && w.dtype() == accumulator(dx.dtype()));
  assert(dy.dtype() == w.dtype() && dy.size(0) == dx.size(0) && dy.size(1) == w.size(0) && dx.size(1) == w.size(1));
  const int64_t E = w.size(0);
  if (is_fused(stream, dx, E))
    return charge_fused(stream, "wide_linear_backward_input", dx, E,
                        bytes_of(dx, dy, w) + (write == Write::accumulate ? bytes_of(dx) : 0.0),
                        [&] { WITAN_CALL_CUDA(wide_linear_backward_input, stream, dx, write, dy, w); });
  if (dx.dtype() == w.dtype()) return gemm(stream, dx, write, dy, Transpose::no, w, Transpose::no);
  const Tensor wide = stream.empty(dx.shape(), w.dtype(), MemoryTag::workspace);
  gemm(stream, wide, Write::overwrite, dy, Transpose::no, w, Transpose::no);
  if (write == Write::accumulate) return accumulate(stream, dx, write, wide);
  cast(stream, dx, wide);
}

void wide_linear_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x) {
  assert(dw.contiguous() && dy.contiguous() && x.contiguous() && dy.dtype() == accumulator(x.dtype()));
  assert(dy.size(0) == x.size(0) && dw.size(0) == dy.size(1) && dw.size(1) == x.size(1));
  const int64_t E = dw.size(0), sums_bytes = dw.elements() * size_of(DType::f32);
  if (is_fused(stream, x, E) && sums_bytes <= Stream::kScratchBytes)
    return charge_fused(stream, "wide_linear_backward_weight", x, E,
                        bytes_of(dw, dy, x) + (write == Write::accumulate ? bytes_of(dw) : 0.0),
                        [&] { WITAN_CALL_CUDA(wide_linear_backward_weight, stream, dw, write, dy, x); });
  const Tensor wide = in_dtype(stream, x, dy.dtype());
  if (dw.dtype() == dy.dtype()) return gemm(stream, dw, write, dy, Transpose::yes, wide, Transpose::no);
  const Tensor sum = stream.empty(dw.shape(), dy.dtype(), MemoryTag::workspace);
  gemm(stream, sum, Write::overwrite, dy, Transpose::yes, wide, Transpose::no);
  accumulate(stream, dw, write, sum);
}

}  // namespace witan::kernels
