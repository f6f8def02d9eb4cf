// What sums of blocks must be: a plain loop in float64.
#pragma once

#include "support/rank.h"
#include "witan/kernels/common/block_sums.h"

namespace witan::testing {

// Of a stack on the host, [E, N, K] contiguous: the sums, one after the other.
inline std::vector<double> exact_block_sums(const Tensor& stack) {
  const std::vector<double> x = values(stack);
  const int64_t N = stack.size(1), K = stack.size(2), across = (K + 127) / 128, down = (N + 15) / 16;
  std::vector<double> sums(static_cast<size_t>(2 * stack.size(0) * down * across));
  for (int64_t i = 0; i < stack.elements(); ++i) {
    const int64_t e = i / (N * K), n = i / K % N, k = i % K;
    double* block = &sums[static_cast<size_t>(2 * (e * down * across + n / 16 * across + k / 128))];
    block[0] += x[static_cast<size_t>(i)] * x[static_cast<size_t>(i)];
    block[1] += x[static_cast<size_t>(i)] == 0;
  }
  return sums;
}

// Sums of squares within `rtol`, numbers of zeros exactly.
inline ::testing::AssertionResult close_block_sums(const Tensor& sums, const Tensor& stack, double rtol) {
  const std::vector<double> found = values(sums), expected = exact_block_sums(stack);
  if (found.size() != expected.size())
    return ::testing::AssertionFailure() << found.size() << " sums against " << expected.size();
  for (size_t i = 0; i < found.size(); ++i)
    if (!(std::abs(found[i] - expected[i]) <= (i % 2 == 0 ? rtol * expected[i] : 0)))
      return ::testing::AssertionFailure() << (i % 2 == 0 ? "squares" : "zeros") << " of block " << i / 2 << ": "
                                           << found[i] << " against " << expected[i];
  return ::testing::AssertionSuccess();
}

// With zeros in every seventh column.
inline void put_zeros(const Tensor& stack) {
  dispatch_floating(stack.dtype(), [&]<class T>() {
    for (int64_t i = 0; i < stack.elements(); ++i)
      if (i % stack.shape().last() % 7 == 3) stack.data<T>()[i] = T(0.0f);
  });
}

}  // namespace witan::testing
