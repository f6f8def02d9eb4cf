// Squared ReLU, alone and as a gate.
#include "witan/kernels/pointwise/cuda/activation.cuh"

namespace witan::kernels::cuda {
namespace {

struct SquaredRelu : PlainUp {
  template <class A>
  __device__ __forceinline__ static ValueAndSlope<A> at(A x) {
    const A positive = x < A(0) ? A(0) : x;
    return {positive * positive, A(2) * positive};
  }
};

}  // namespace

void squared_relu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups) {
  activation_forward<SquaredRelu, false>(stream, y, h, s, groups);
}

void squared_relu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                           const Tensor& s, const RowGroups& groups) {
  activation_backward<SquaredRelu, false>(stream, dh, ds, dy, h, s, groups);
}

void squared_reglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups) {
  activation_forward<SquaredRelu, true>(stream, y, h, s, groups);
}

void squared_reglu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                            const Tensor& s, const RowGroups& groups) {
  activation_backward<SquaredRelu, true>(stream, dh, ds, dy, h, s, groups);
}

}  // namespace witan::kernels::cuda
