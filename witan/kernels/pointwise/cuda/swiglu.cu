#include "witan/kernels/pointwise/cuda/activation.cuh"

namespace witan::kernels::cuda {

void swiglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups) {
  activation_forward<Silu, true>(stream, y, h, s, groups);
}

void swiglu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                     const Tensor& s, const RowGroups& groups) {
  activation_backward<Silu, true>(stream, dh, ds, dy, h, s, groups);
}

void silu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups) {
  activation_forward<Silu, false>(stream, y, h, s, groups);
}

void silu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                   const Tensor& s, const RowGroups& groups) {
  activation_backward<Silu, false>(stream, dh, ds, dy, h, s, groups);
}

void clamped_swiglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups,
                            const SwigluForm& form) {
  activation_forward<rules::ClampedSilu<Math>, true>(stream, y, h, s, groups, rules::ClampedSilu<Math>(form));
}

void clamped_swiglu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                             const Tensor& s, const RowGroups& groups, const SwigluForm& form) {
  activation_backward<rules::ClampedSilu<Math>, true>(stream, dh, ds, dy, h, s, groups, rules::ClampedSilu<Math>(form));
}

}  // namespace witan::kernels::cuda
