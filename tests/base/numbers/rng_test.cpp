#include "witan/base/numbers/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <vector>

namespace witan {
namespace {

using Words = std::array<uint32_t, 4>;

// Random123's kat_vectors, "philox4x32 10". The low half of the counter is the index, the high half the stream; the key
// is the seed.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox(0, 0).block(0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox(~0ull, ~0ull).block(~0ull), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox(0x299f31d0a4093822ull, 0x0370734413198a2eull).block(0x85a308d3243f6a88ull),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, BitsFollowTheBlocks) {
  const Philox random(7, 9);
  for (uint64_t i = 0; i < 64; ++i) EXPECT_EQ(random.bits(i), random.block(i / 4)[i % 4]);
}

TEST(Philox, DependsOnSeedStreamAndIndex) {
  const Words words = Philox(1, 2).block(3);
  EXPECT_EQ(words, Philox(1, 2).block(3));
  EXPECT_NE(words, Philox(4, 2).block(3));
  EXPECT_NE(words, Philox(1, 4).block(3));
  EXPECT_NE(words, Philox(1, 2).block(4));
}

// 64-bit FNV-1a. Checkpoints rely on it, since a parameter's stream is the hash of its name.
TEST(Philox, StreamOfNameIsFrozen) {
  EXPECT_EQ(Philox::stream_of(""), 0xcbf29ce484222325ull);
  EXPECT_EQ(Philox::stream_of("a"), 0xaf63dc4c8601ec8cull);
  EXPECT_EQ(Philox::stream_of("foobar"), 0x85944171f73967e8ull);
}

TEST(Philox, UniformFillsTheUnitInterval) {
  const Philox random(1, Philox::stream_of("uniform"));
  constexpr int kDraws = 200000, kBins = 20;
  std::vector<int> bins(kBins);
  for (int i = 0; i < kDraws; ++i) {
    const double u = random.uniform(static_cast<uint64_t>(i));
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ++bins[static_cast<size_t>(u * kBins)];
  }
  const double expected = double{kDraws} / kBins;
  for (const int count : bins) EXPECT_NEAR(count, expected, 5 * std::sqrt(expected));
}

TEST(Philox, NormalHasNormalMoments) {
  const Philox random(2, Philox::stream_of("normal"));
  constexpr int kDraws = 400000;
  double sums[5] = {}, neighbours = 0, within_one = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = random.normal(static_cast<uint64_t>(i));
    ASSERT_TRUE(std::isfinite(x));
    double power = 1;
    for (double& sum : sums) sum += power, power *= x;
    if (i % 2 == 0) neighbours += x * random.normal(static_cast<uint64_t>(i) + 1);  // they share a radius
    within_one += std::abs(x) < 1;
  }
  // Tolerances: five standard errors of each moment's mean; the variance is 1, 2, 15 and 96 for powers one to four.
  const double error = 5 / std::sqrt(double{kDraws});
  EXPECT_NEAR(sums[1] / kDraws, 0, error);
  EXPECT_NEAR(sums[2] / kDraws, 1, error * std::sqrt(2.0));
  EXPECT_NEAR(sums[3] / kDraws, 0, error * std::sqrt(15.0));
  EXPECT_NEAR(sums[4] / kDraws, 3, error * std::sqrt(96.0));
  EXPECT_NEAR(2 * neighbours / kDraws, 0, error * std::sqrt(2.0));
  EXPECT_NEAR(within_one / kDraws, 0.682689, error);
}

TEST(Philox, BatchedNormalsMatchSingleOnes) {
  const Philox random(5, Philox::stream_of("many"));
  for (const uint64_t first : {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{7}, (uint64_t{1} << 33) + 3})
    for (const size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{3}, size_t{5}, size_t{64}, size_t{1001}}) {
      std::vector<double> found(count), expected(count);
      random.normals(first, found);
      for (size_t i = 0; i < count; ++i) expected[i] = random.normal(first + i);
      EXPECT_EQ(found, expected) << count << " from " << first;
    }
}

TEST(Philox, BelowStaysBelow) {
  const Philox random(3, 0);
  for (uint64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(random.below(1, i), 0u);
    EXPECT_LT(random.below(7, i), 7u);
    EXPECT_LT(random.below(~0ull, i), ~0ull);
  }
  std::set<uint64_t> seen;
  for (uint64_t i = 0; i < 1000; ++i) seen.insert(random.below(7, i));
  EXPECT_EQ(seen.size(), 7u);
}

TEST(Philox, BelowIsUniform) {
  const Philox random(4, 0);
  constexpr int kDraws = 70000;
  std::vector<int> bins(7);
  for (int i = 0; i < kDraws; ++i) ++bins[random.below(7, static_cast<uint64_t>(i))];
  for (const int count : bins) EXPECT_NEAR(count, kDraws / 7.0, 5 * std::sqrt(kDraws / 7.0));
}

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
TEST(Permutation, HasUniformOrdersOfASmallSet) {
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
