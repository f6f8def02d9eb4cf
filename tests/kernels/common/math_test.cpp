#include "witan/kernels/common/cpu/math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace witan::kernels::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The error of `got` in units in the last place of float at the exact value (below the normal range: of the smallest
// denormal).
double ulps(float got, double exact) {
  const double magnitude = std::max(std::abs(exact), static_cast<double>(std::numeric_limits<float>::min()));
  return std::abs(static_cast<double>(got) - exact) / std::exp2(std::floor(std::log2(magnitude)) - 23);
}

// Calls f(x) for every 997th of all floats, including negative ones, except NaN and the infinities.
template <class F>
void for_floats(const F& f) {
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 997)
    if (const float x = std::bit_cast<float>(static_cast<uint32_t>(bits)); std::isfinite(x)) f(x);
}

TEST(FastExp, IsWithinTwoUlpsOverTheWholeRange) {
  double worst = 0;
  for_floats([&](float x) {
    const double exact = std::exp(static_cast<double>(x));
    if (exact > std::numeric_limits<float>::max())
      ASSERT_EQ(fast_exp(x), kInf) << x;
    else
      worst = std::max(worst, ulps(fast_exp(x), exact));
  });
  for (float x = -104.5f; x < 88.7f; x += 1.0f / 4096)
    worst = std::max(worst, ulps(fast_exp(x), std::exp(static_cast<double>(x))));
  EXPECT_LE(worst, 2);
  RecordProperty("worst_ulps", std::to_string(worst));
}

TEST(FastExp, OverflowsUnderflowsAndKeepsNan) {
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  EXPECT_EQ(fast_exp(-0.0f), 1.0f);
  EXPECT_EQ(fast_exp(kInf), kInf);
  EXPECT_EQ(fast_exp(88.8f), kInf);
  EXPECT_LT(fast_exp(88.7f), kInf);
  EXPECT_EQ(fast_exp(-kInf), 0.0f);
  EXPECT_EQ(fast_exp(-104.5f), 0.0f);
  EXPECT_GT(fast_exp(-103.0f), 0.0f);  // a denormal
  EXPECT_TRUE(std::isnan(fast_exp(std::nanf(""))));
  EXPECT_EQ(fast_exp(1.0), std::exp(1.0));
}

TEST(FastSigmoid, SaturatesWithoutNan) {
  EXPECT_EQ(fast_sigmoid(0.0f), 0.5f);
  EXPECT_EQ(fast_sigmoid(kInf), 1.0f);
  EXPECT_EQ(fast_sigmoid(-kInf), 0.0f);
  EXPECT_EQ(fast_sigmoid(-1000.0f), 0.0f);
  EXPECT_TRUE(std::isnan(fast_sigmoid(std::nanf(""))));
}

TEST(FastErf, IsWithinTwoUlpsOverTheWholeRange) {
  double worst = 0;
  for_floats([&](float x) { worst = std::max(worst, ulps(fast_erf(x), std::erf(static_cast<double>(x)))); });
  for (float x = -5; x < 5; x += 1.0f / 65536)
    worst = std::max(worst, ulps(fast_erf(x), std::erf(static_cast<double>(x))));
  EXPECT_LE(worst, 2);
  RecordProperty("worst_ulps", std::to_string(worst));
  EXPECT_EQ(fast_erf(kInf), 1.0f);
  EXPECT_EQ(fast_erf(-kInf), -1.0f);
  EXPECT_TRUE(std::isnan(fast_erf(std::nanf(""))));
}

}  // namespace
}  // namespace witan::kernels::cpu
