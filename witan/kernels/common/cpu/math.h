// Elementary functions that the compiler can vectorise inside `#pragma omp simd` loops. The float versions are
// branchless and, with FMA, within 1 ulp of the exact value. The double versions, which only tests use, call the
// library.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace witan::kernels::cpu {

// 2^n p(r) with x = n log 2 + r, |r| <= log(2)/2. Overflows to inf, underflows gradually to 0, keeps NaN.
[[gnu::always_inline]] inline float fast_exp(float x) {
  constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  constexpr float kLog2High = 0.693359375f, kLog2Low = -2.12194440e-4f;  // n * kLog2High is exact
  x = x < -105.0f ? -105.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const float shifted = x * 1.44269504f + kToInteger;
  const float n = shifted - kToInteger;
  const float r = (x - n * kLog2High) - n * kLog2Low;
  float p = 1.37805939e-3f;
  p = p * r + 8.37312452e-3f;
  p = p * r + 4.16695364e-2f;
  p = p * r + 1.66664720e-1f;
  p = p * r + 4.99999851e-1f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // The power is applied as two factors, since neither 2^128 nor 2^-150 is a normal float.
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kToInteger);
  const int32_t half = exponent >> 1;
  const auto power = [](int32_t e) { return std::bit_cast<float>(static_cast<uint32_t>(e + 127) << 23); };
  return p * power(half) * power(exponent - half);
}
inline double fast_exp(double x) {
  return std::exp(x);
}

template <class A>
[[gnu::always_inline]] inline A fast_sigmoid(A x) {
  return A(1) / (A(1) + fast_exp(-x));
}

// Uses a polynomial near 0, and 1 - exp(polynomial) further out.
[[gnu::always_inline]] inline float fast_erf(float x) {
  const float t = std::fabs(x), s = x * x;
  float far = -1.72853470e-5f * t + 3.83197126e-4f;
  far = far * s + (-3.88396438e-3f * t + 2.42546219e-2f);
  far = far * t - 1.06777877e-1f;
  far = far * t - 6.34846687e-1f;
  far = far * t - 1.28717512e-1f;
  far = far * t - t;
  far = std::copysign(1.0f - fast_exp(far), x);
  float near = -5.96761703e-4f;
  near = near * s + 4.99119423e-3f;
  near = near * s - 2.67681349e-2f;
  near = near * s + 1.12819925e-1f;
  near = near * s - 3.76125336e-1f;
  near = near * s + 1.28379166e-1f;
  near = near * x + x;
  return t <= 0.927734375f ? near : far;
}
inline double fast_erf(double x) {
  return std::erf(x);
}

// These functions in the form that pointwise rules expect (pointwise/rules.h).
struct Math {
  template <class A>
  [[gnu::always_inline]] static A sigmoid(A x) {
    return fast_sigmoid(x);
  }
  template <class A>
  [[gnu::always_inline]] static A exp(A x) {
    return fast_exp(x);
  }
  template <class A>
  [[gnu::always_inline]] static A erf(A x) {
    return fast_erf(x);
  }
};

}  // namespace witan::kernels::cpu
