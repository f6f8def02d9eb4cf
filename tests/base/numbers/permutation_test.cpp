#include "witan/base/numbers/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

namespace witan {
namespace {

TEST(Permutation, IsAPermutation) {
  for (const int64_t size : {1, 2, 3, 7, 8, 255, 256, 257, 1000, 65536, 100003}) {
    const Permutation order(size, 1, 2);
    std::vector<bool> seen(static_cast<size_t>(size), false);
    for (int64_t i = 0; i < size; ++i) {
      const int64_t image = order(i);
      ASSERT_TRUE(image >= 0 && image < size && !seen[static_cast<size_t>(image)]) << size << " " << i;
      seen[static_cast<size_t>(image)] = true;
    }
  }
}

TEST(Permutation, HandlesSizesBeyondThirtyTwoBits) {
  const int64_t size = (int64_t{1} << 40) + 12345;
  const Permutation order(size, 3, 4);
  for (int64_t i = 0; i < 1000; ++i) {
    EXPECT_GE(order(size - 1 - i), 0);
    EXPECT_LT(order(size - 1 - i), size);
  }
}

TEST(Permutation, DependsOnSeedAndStreamAlone) {
  const Permutation a(1000, 1, 2), same(1000, 1, 2), other_seed(1000, 2, 2), other_stream(1000, 1, 3);
  int seed_differs = 0, stream_differs = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(a(i), same(i));
    seed_differs += a(i) != other_seed(i);
    stream_differs += a(i) != other_stream(i);
  }
  EXPECT_GT(seed_differs, 950);
  EXPECT_GT(stream_differs, 950);
}

// Checkpoints depend on these values.
TEST(Permutation, IsFrozen) {
  const Permutation order(10, 1234, 0);
  std::vector<int64_t> images;
  for (int64_t i = 0; i < 10; ++i) images.push_back(order(i));
  EXPECT_EQ(images, (std::vector<int64_t>{4, 8, 1, 7, 5, 9, 6, 2, 3, 0}));
}

// All 24 orders of four things come about equally often: chi-squared with 23 degrees of freedom, far tail.
TEST(Permutation, ReachesAllOrdersOfASmallSetEvenly) {
  constexpr int kTrials = 24000;
  std::map<std::vector<int64_t>, int> counts;
  for (uint64_t seed = 0; seed < kTrials; ++seed) {
    const Permutation order(4, seed, 9);
    ++counts[{order(0), order(1), order(2), order(3)}];
  }
  ASSERT_EQ(counts.size(), 24u);
  double chi_squared = 0;
  for (const auto& [order, count] : counts) chi_squared += std::pow(count - kTrials / 24.0, 2) / (kTrials / 24.0);
  EXPECT_LT(chi_squared, 60);
}

TEST(Permutation, LeavesNoCorrelationBetweenNeighbours) {
  constexpr int64_t kSize = 100000;
  const Permutation order(kSize, 5, 6);
  double sum = 0;
  for (int64_t i = 0; i + 1 < kSize; ++i)
    sum += (static_cast<double>(order(i)) / kSize - 0.5) * (static_cast<double>(order(i + 1)) / kSize - 0.5);
  EXPECT_LT(std::abs(sum / kSize), 5 * (1.0 / 12) / std::sqrt(double{kSize}));
}

}  // namespace
}  // namespace witan
