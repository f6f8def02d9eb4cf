// GELU and GEGLU, either kind.
#include <numbers>

#include "witan/kernels/pointwise/cuda/activation.cuh"

namespace witan::kernels::cuda {
namespace {

__device__ __forceinline__ float error_function(float x) {
  return erff(x);
}
__device__ __forceinline__ double error_function(double x) {
  return erf(x);
}
__device__ __forceinline__ float exponential(float x) {
  return __expf(x);
}
__device__ __forceinline__ double exponential(double x) {
  return exp(x);
}

// Phi(x) = (1 + erf(x / sqrt 2)) / 2:  gelu = x Phi,  gelu' = Phi + x phi
struct ExactGelu : PlainUp {
  template <class A>
  __device__ __forceinline__ static ValueAndSlope<A> at(A x) {
    const A cumulative = A(0.5) * (A(1) + error_function(x * A(1 / std::numbers::sqrt2)));
    const A density = exponential(A(-0.5) * x * x) * A(0.5 * std::numbers::inv_sqrtpi * std::numbers::sqrt2);
    return {x * cumulative, cumulative + x * density};
  }
};

// (1 + tanh(u)) / 2 = sigmoid(2u):  gelu = x sigmoid(2u),  gelu' = sigmoid + x sigmoid (1 - sigmoid) 2u'
struct TanhGelu : PlainUp {
  template <class A>
  __device__ __forceinline__ static ValueAndSlope<A> at(A x) {
    constexpr A c = A(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi), k = A(0.044715);
    const A gate = sigmoid(c * (x + k * x * x * x));
    return {x * gate, gate + x * gate * (A(1) - gate) * c * (A(1) + A(3) * k * x * x)};
  }
};

// body.template operator()<Function>() with the function of a kind.
template <class Body>
void with_gelu(GeluKind kind, const Body& body) {
  if (kind == GeluKind::exact)
    body.template operator()<ExactGelu>();
  else
    body.template operator()<TanhGelu>();
}

}  // namespace

void gelu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups,
                  GeluKind kind) {
  with_gelu(kind, [&]<class Gelu>() { activation_forward<Gelu, false>(stream, y, h, s, groups); });
}

void gelu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                   const Tensor& s, const RowGroups& groups, GeluKind kind) {
  with_gelu(kind, [&]<class Gelu>() { activation_backward<Gelu, false>(stream, dh, ds, dy, h, s, groups); });
}

void geglu_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups,
                   GeluKind kind) {
  with_gelu(kind, [&]<class Gelu>() { activation_forward<Gelu, true>(stream, y, h, s, groups); });
}

void geglu_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                    const Tensor& s, const RowGroups& groups, GeluKind kind) {
  with_gelu(kind, [&]<class Gelu>() { activation_backward<Gelu, true>(stream, dh, ds, dy, h, s, groups); });
}

}  // namespace witan::kernels::cuda
