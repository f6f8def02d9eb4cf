#include <limits>

#include "witan/kernels/pointwise/cuda/activation.cuh"

namespace witan::kernels::cuda {
namespace {

// SwiGLU's halves in another form; where an input is clamped its slope is 0. Comparisons let a NaN through.
struct ClampedSilu {
  explicit ClampedSilu(const SwigluForm& form)
      : most(form.clamp > 0 ? form.clamp : std::numeric_limits<double>::infinity()),
        scale(form.scale),
        offset(form.offset) {}

  template <class A>
  __device__ __forceinline__ ValueAndSlope<A> at(A x) const {
    const A gate = x > A(most) ? A(most) : x, open = sigmoid(A(scale) * gate);
    const A slope = open * (A(1) + A(scale) * gate * (A(1) - open));
    return {gate * open, x > A(most) ? A(0) : slope};
  }
  template <class A>
  __device__ __forceinline__ ValueAndSlope<A> up(A x) const {
    const A clamped = x > A(most) ? A(most) : x < A(-most) ? A(-most) : x;
    return {clamped + A(offset), clamped == x ? A(1) : A(0)};
  }

  double most, scale, offset;
};

}  // namespace

void clamped_swiglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups,
                            const SwigluForm& form) {
  activation_forward<ClampedSilu, true>(stream, y, h, s, groups, ClampedSilu(form));
}

void clamped_swiglu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                             const Tensor& s, const RowGroups& groups, const SwigluForm& form) {
  activation_backward<ClampedSilu, true>(stream, dh, ds, dy, h, s, groups, ClampedSilu(form));
}

}  // namespace witan::kernels::cuda
