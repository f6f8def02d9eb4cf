#include "witan/kernels/pointwise/cuda/activation.cuh"

namespace witan::kernels::cuda {

void silu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups) {
  activation_forward<Silu, false>(stream, y, h, s, groups);
}

void silu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                   const Tensor& s, const RowGroups& groups) {
  activation_backward<Silu, false>(stream, dh, ds, dy, h, s, groups);
}

}  // namespace witan::kernels::cuda
