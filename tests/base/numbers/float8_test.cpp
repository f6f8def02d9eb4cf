#include "witan/base/numbers/float8.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace witan {
namespace {

// The formats by their definition (Micikevicius et al., arXiv:2209.05433, table 1). kLargest: the bits of the largest
// finite number; larger patterns are infinity, if the format has one, and NaNs.
template <class Float8>
struct Format;
template <>
struct Format<e4m3> {
  static constexpr int kMantissaBits = 3, kBias = 7;
  static constexpr uint32_t kLargest = 0x7E;
  static constexpr bool kHasInfinity = false;
  static constexpr float kBeyond[] = {449, 1e30F};
};
template <>
struct Format<e5m2> {
  static constexpr int kMantissaBits = 2, kBias = 15;
  static constexpr uint32_t kLargest = 0x7B;
  static constexpr bool kHasInfinity = true;
  static constexpr float kBeyond[] = {57345, 61440, 65536, 1e30F};
};

template <class Float8>
double exact_value(uint32_t bits) {
  constexpr int kMantissaBits = Format<Float8>::kMantissaBits, kBias = Format<Float8>::kBias;
  const int exponent = static_cast<int>(bits & 0x7F) >> kMantissaBits;
  const double fraction = std::ldexp(bits & ((1u << kMantissaBits) - 1), -kMantissaBits);
  const double magnitude = exponent == 0 ? std::ldexp(fraction, 1 - kBias) : std::ldexp(1 + fraction, exponent - kBias);
  return bits & 0x80 ? -magnitude : magnitude;
}

template <class Float8>
float value_of(uint32_t bits) {
  return std::bit_cast<Float8>(static_cast<uint8_t>(bits));
}

struct FormatNames {
  template <class Float8>
  static std::string GetName(int) {
    return Format<Float8>::kHasInfinity ? "e5m2" : "e4m3";
  }
};
template <class Float8>
class Float8Test : public ::testing::Test {};
using Formats = ::testing::Types<e4m3, e5m2>;
TYPED_TEST_SUITE(Float8Test, Formats, FormatNames);

TYPED_TEST(Float8Test, DecodesAndRoundTripsEveryPattern) {
  constexpr uint32_t kLargest = Format<TypeParam>::kLargest;
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const float value = value_of<TypeParam>(bits);
    const uint32_t magnitude = bits & 0x7F;
    if (Format<TypeParam>::kHasInfinity && magnitude == kLargest + 1) {
      EXPECT_TRUE(std::isinf(value));
      EXPECT_EQ(std::signbit(value), bits > 0x7F);
    } else if (magnitude > kLargest) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(TypeParam(value).bits, 0x7F);
    } else {
      EXPECT_EQ(value, exact_value<TypeParam>(bits)) << bits;
      EXPECT_EQ(TypeParam(value).bits, bits);
    }
  }
  EXPECT_EQ(value_of<TypeParam>(kLargest), TypeParam::kLargest);
}

// For each pair of neighbours: just below the midpoint rounds down, just above rounds up, and the midpoint to even.
TYPED_TEST(Float8Test, RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < Format<TypeParam>::kLargest; ++bits)
    for (const uint32_t sign : {0u, 0x80u}) {
      const uint32_t low = bits | sign, high = low + 1;
      const auto middle = static_cast<float>((exact_value<TypeParam>(low) + exact_value<TypeParam>(high)) / 2);
      EXPECT_EQ(TypeParam(middle).bits, low % 2 == 0 ? low : high) << bits;
      EXPECT_EQ(TypeParam(std::nextafter(middle, 0.0F)).bits, low) << bits;
      EXPECT_EQ(TypeParam(std::nextafter(middle, middle * 2)).bits, high) << bits;
    }
}

TYPED_TEST(Float8Test, SaturatesAtTheLargestNumber) {
  constexpr uint32_t kLargest = Format<TypeParam>::kLargest;
  std::vector<float> beyond(std::begin(Format<TypeParam>::kBeyond), std::end(Format<TypeParam>::kBeyond));
  beyond.push_back(std::numeric_limits<float>::infinity());
  for (const float large : beyond) {
    EXPECT_EQ(TypeParam(large).bits, kLargest);
    EXPECT_EQ(TypeParam(-large).bits, kLargest | 0x80);
  }
  EXPECT_EQ(TypeParam(-0.0F).bits, 0x80);
  EXPECT_EQ(TypeParam(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(TypeParam(-std::nanf("")).bits, 0x7F);
}

}  // namespace
}  // namespace witan
