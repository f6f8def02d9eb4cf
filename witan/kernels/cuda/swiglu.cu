#include "witan/kernels/cuda/activation.cuh"

namespace witan::kernels::cuda {
namespace {

// silu = x sigmoid,  silu' = sigmoid (1 + x (1 - sigmoid))
struct Silu {
  template <class A>
  __device__ __forceinline__ static ValueAndSlope<A> at(A x) {
    const A open = sigmoid(x);
    return {x * open, open * (A(1) + x * (A(1) - open))};
  }
};

}  // namespace

void swiglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups) {
  activation_forward<Silu, true>(stream, y, h, s, groups);
}

void swiglu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                     const Tensor& s, const RowGroups& groups) {
  activation_backward<Silu, true>(stream, dh, ds, dy, h, s, groups);
}

}  // namespace witan::kernels::cuda
