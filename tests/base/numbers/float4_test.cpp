#include "witan/base/numbers/float4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace witan {
namespace {

double e2m1_value(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 1 & 3U);
  const double fraction = (bits & 1U) / 2.0;
  const double magnitude = exponent == 0 ? fraction : std::ldexp(1 + fraction, exponent - 1);
  return bits & 8U ? -magnitude : magnitude;
}

e2m1 e2m1_of(uint32_t bits) {
  e2m1 number;
  number.bits = static_cast<uint8_t>(bits);
  return number;
}

TEST(Float4, DecodesAndRoundTripsEveryPattern) {
  for (uint32_t bits = 0; bits < 16; ++bits) {
    const float value = e2m1_of(bits);
    EXPECT_EQ(value, e2m1_value(bits)) << bits;
    EXPECT_EQ(std::signbit(value), bits >= 8) << bits;
    EXPECT_EQ(e2m1(value).bits, bits);
  }
}

TEST(Float4, RoundsToNearestEven) {
  for (uint32_t low = 0; low < 7; ++low)
    for (const uint32_t sign : {0U, 8U}) {
      const double middle = (e2m1_value(low | sign) + e2m1_value((low + 1) | sign)) / 2;
      EXPECT_EQ(e2m1(middle).bits, (low + low % 2) | sign) << middle;
      EXPECT_EQ(e2m1(std::nextafter(middle, 0)).bits, low | sign) << middle;
      EXPECT_EQ(e2m1(std::nextafter(middle, 2 * middle)).bits, (low + 1) | sign) << middle;
    }
}

TEST(Float4, SaturatesAtTheLargestNumber) {
  for (const double large : {6.01, 1e300, std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(e2m1(large).bits, 7);
    EXPECT_EQ(e2m1(-large).bits, 15);
  }
  EXPECT_EQ(e2m1(-0.0).bits, 8);
  EXPECT_EQ(e2m1(std::numeric_limits<double>::denorm_min()).bits, 0);
}

}  // namespace
}  // namespace witan
