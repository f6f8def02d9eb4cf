// Pointwise functions and their derivatives, written once for the CPU's and CUDA's twins, which both instantiate them.
//
// `Math` has a device's elementary functions: sigmoid(x), exp(x) and erf(x). The CPU's are polynomials that the
// compiler vectorises (common/cpu/math.h), a GPU's are its own (pointwise/cuda/activation.cuh), so that the twins agree
// to a few units in the last place. A is the type in which a twin computes: float or double.
//
// An activation's at(x) is its value and slope. A gate has up(x) too, for the half that it multiplies. Callers that use
// one of the two numbers leave the other to the optimiser.
#pragma once

#include <limits>
#include <numbers>

#include "witan/kernels/pointwise/activation.h"

// CUDA sources instantiate rules on the device alone, where Math's functions are.
#if defined(__CUDACC__)
#define WITAN_RULE __device__ __forceinline__
#else
#define WITAN_RULE [[gnu::always_inline]]
#endif

namespace witan::kernels::rules {

template <class A>
struct ValueAndSlope {
  A value, slope;
};

// The half that a gate multiplies, unchanged.
struct PlainUp {
  template <class A>
  WITAN_RULE static ValueAndSlope<A> up(A x) {
    return {x, A(1)};
  }
};

// silu = x sigmoid,  silu' = sigmoid (1 + x (1 - sigmoid))
template <class Math>
struct Silu : PlainUp {
  template <class A>
  WITAN_RULE static ValueAndSlope<A> at(A x) {
    const A open = Math::sigmoid(x);
    return {x * open, open * (A(1) + x * (A(1) - open))};
  }
};

// Phi(x) = (1 + erf(x / sqrt 2)) / 2:  gelu = x Phi,  gelu' = Phi + x phi
template <class Math>
struct ExactGelu : PlainUp {
  template <class A>
  WITAN_RULE static ValueAndSlope<A> at(A x) {
    const A cumulative = A(0.5) * (A(1) + Math::erf(x * A(1 / std::numbers::sqrt2)));
    const A density = Math::exp(A(-0.5) * x * x) * A(0.5 * std::numbers::inv_sqrtpi * std::numbers::sqrt2);
    return {x * cumulative, cumulative + x * density};
  }
};

// (1 + tanh(u)) / 2 = sigmoid(2u):  gelu = x sigmoid(2u),  gelu' = sigmoid + x sigmoid (1 - sigmoid) 2u'
template <class Math>
struct TanhGelu : PlainUp {
  template <class A>
  WITAN_RULE static ValueAndSlope<A> at(A x) {
    constexpr A c = A(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi), k = A(0.044715);
    const A gate = Math::sigmoid(c * (x + k * x * x * x));
    return {x * gate, gate + x * gate * (A(1) - gate) * c * (A(1) + A(3) * k * x * x)};
  }
};

// max(x, 0)^2
struct SquaredRelu : PlainUp {
  template <class A>
  WITAN_RULE static ValueAndSlope<A> at(A x) {
    const A positive = x < A(0) ? A(0) : x;
    return {positive * positive, A(2) * positive};
  }
};

// The two halves of SwiGLU in another form. The slope is 0 where an input is clamped. Comparisons let a NaN through.
template <class Math>
struct ClampedSilu {
  explicit ClampedSilu(const SwigluForm& form)
      : most(form.clamp > 0 ? form.clamp : std::numeric_limits<double>::infinity()),
        scale(form.scale),
        offset(form.offset) {}

  template <class A>
  WITAN_RULE ValueAndSlope<A> at(A x) const {
    const A gate = x > A(most) ? A(most) : x, open = Math::sigmoid(A(scale) * gate);
    const A slope = open * (A(1) + A(scale) * gate * (A(1) - open));
    return {gate * open, x > A(most) ? A(0) : slope};
  }
  template <class A>
  WITAN_RULE ValueAndSlope<A> up(A x) const {
    const A clamped = x > A(most) ? A(most) : x < A(-most) ? A(-most) : x;
    return {clamped + A(offset), clamped == x ? A(1) : A(0)};
  }

  double most, scale, offset;
};

// Clamping to [-bound, bound]; a NaN stays one. The gradient passes where x is within the bounds.
template <class A>
struct Clamp {
  A bound;
  WITAN_RULE A value(A x) const { return x < -bound ? -bound : x > bound ? bound : x; }
  WITAN_RULE bool passes(A x) const { return x >= -bound && x <= bound; }
};

// The derivative of y = cap tanh(scale x / cap), from y. The twins compute y itself by other functions: the CPU by a
// sigmoid, which it vectorises, a GPU by its tanh.
template <class A>
struct SoftCapSlope {
  A scale, share;  // share = 1 / cap
  WITAN_RULE A gradient(A y, A dy) const {
    const A tangent = y * share;
    return scale * (A(1) - tangent * tangent) * dy;
  }
};

}  // namespace witan::kernels::rules

#undef WITAN_RULE
