// Squared ReLU, alone and as a gate.
#include "witan/kernels/pointwise/cuda/activation.cuh"

namespace witan::kernels::cuda {
void squared_relu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups) {
  activation_forward<rules::SquaredRelu, false>(stream, y, h, s, groups);
}

void squared_relu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                           const Tensor& s, const RowGroups& groups) {
  activation_backward<rules::SquaredRelu, false>(stream, dh, ds, dy, h, s, groups);
}

void squared_reglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups) {
  activation_forward<rules::SquaredRelu, true>(stream, y, h, s, groups);
}

void squared_reglu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                            const Tensor& s, const RowGroups& groups) {
  activation_backward<rules::SquaredRelu, true>(stream, dh, ds, dy, h, s, groups);
}

}  // namespace witan::kernels::cuda
