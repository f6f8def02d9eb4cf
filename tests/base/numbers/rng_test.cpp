#include "witan/base/numbers/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace witan {
namespace {

using Words = std::array<uint32_t, 4>;

// Random123's kat_vectors, "philox4x32 10". The counter's low half is the index, its high half the stream, the key the
// seed.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox(0, 0).block(0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox(~0ull, ~0ull).block(~0ull), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox(0x299f31d0a4093822ull, 0x0370734413198a2eull).block(0x85a308d3243f6a88ull),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, BitsWalkThroughTheBlocks) {
  const Philox random(7, 9);
  for (uint64_t i = 0; i < 64; ++i) EXPECT_EQ(random.bits(i), random.block(i / 4)[i % 4]);
}

TEST(Philox, SeedStreamAndIndexAllMatter) {
  const Words words = Philox(1, 2).block(3);
  EXPECT_EQ(words, Philox(1, 2).block(3));
  EXPECT_NE(words, Philox(4, 2).block(3));
  EXPECT_NE(words, Philox(1, 4).block(3));
  EXPECT_NE(words, Philox(1, 2).block(4));
}

// FNV-1a, 64 bits: checkpoints rely on it, since a parameter's stream is its name's.
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
  // Five standard errors of each moment's mean: its variance is 1, 2, 15 and 96 for powers one to four.
  const double error = 5 / std::sqrt(double{kDraws});
  EXPECT_NEAR(sums[1] / kDraws, 0, error);
  EXPECT_NEAR(sums[2] / kDraws, 1, error * std::sqrt(2.0));
  EXPECT_NEAR(sums[3] / kDraws, 0, error * std::sqrt(15.0));
  EXPECT_NEAR(sums[4] / kDraws, 3, error * std::sqrt(96.0));
  EXPECT_NEAR(2 * neighbours / kDraws, 0, error * std::sqrt(2.0));
  EXPECT_NEAR(within_one / kDraws, 0.682689, error);
}

TEST(Philox, ManyNormalsAreThoseOfEachIndex) {
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

}  // namespace
}  // namespace witan
