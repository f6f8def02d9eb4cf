// Bounds on the error of a matrix product of standard normal values, relative to the exact product, which the CPU
// computes in float64 from the same operands; and cases of grouped products.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "support/rank.h"
#include "witan/tensor/dtype.h"

namespace witan::testing {

// The elements of a tensor in float64.
inline Tensor widened(Rank& rank, const Tensor& tensor) {
  return rank.tensor(tensor.shape(), values(tensor));
}

// Half a unit in the last place, relative: the error of rounding to the dtype.
inline double rounding_of(DType dtype) {
  return dtype == DType::f64 ? 0x1p-53 : dtype == DType::f32 ? 0x1p-24 : dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
}

// Error of sums of K terms of size one before they are rounded to the result's dtype. In float32, partial sums have
// size sqrt(K); each of K additions may lose two units of 2^-23 of that, since matrix units truncate. Most terms of a
// long sum are added inside such a unit, which truncates once.
inline double summation_error(DType in, int64_t K) {
  const auto terms = static_cast<double>(K);
  return std::sqrt(terms) * (in == DType::f64 ? 1e-15 * terms : std::min(0x1p-22 * terms, 1e-4));
}

// A product a b with K terms per element, or before + a b.
struct ExactProduct {
  std::vector<double> product;  // only a b
  std::vector<double> before;   // empty: overwritten
  int64_t K = 0;

  double at(size_t i) const { return product[i] + (before.empty() ? 0.0 : before[i]); }
  // The sum is rounded once to the dtype; libraries may also round the product to bfloat16 before adding it.
  double allowed(size_t i, DType in, DType out) const {
    const double twice = before.empty() ? 0.0 : std::abs(product[i]);
    return summation_error(in, K) + rounding_of(out) * (std::abs(at(i)) + twice) * (1 + 0x1p-6);
  }
};

// Expects every element within the bound, and NaN wherever the exact result is NaN.
inline ::testing::AssertionResult close(const Tensor& found, const ExactProduct& exact, DType in) {
  const std::vector<double> got = values(found);
  if (got.size() != exact.product.size())
    return ::testing::AssertionFailure() << got.size() << " elements against " << exact.product.size();
  for (size_t i = 0; i < got.size(); ++i) {
    const double want = exact.at(i), most = exact.allowed(i, in, found.dtype());
    if (std::isnan(want) ? !std::isnan(got[i]) : !(std::abs(got[i] - want) <= most))
      return ::testing::AssertionFailure()
             << "element " << i << ": " << got[i] << " against " << want << ", which may differ by " << most;
  }
  return ::testing::AssertionSuccess();
}

// A grouped product: group e has rows [begin[e], begin[e] + count[e]) of a buffer [capacity, K], which are multiplied
// by matrices [N, K].
struct GroupedCase {
  int64_t capacity, K, N;
  std::vector<int64_t> begin, count;
};

// Dtypes of the operands and of a weight's gradient.
inline constexpr std::pair<DType, DType> kGroupedTypes[] = {{DType::f64, DType::f64},   {DType::f32, DType::f32},
                                                            {DType::bf16, DType::bf16}, {DType::bf16, DType::f32},
                                                            {DType::f16, DType::f16},   {DType::f16, DType::f32}};

}  // namespace witan::testing
