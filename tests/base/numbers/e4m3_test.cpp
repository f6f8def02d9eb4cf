#include "witan/base/numbers/e4m3.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace witan {
namespace {

e4m3 from_bits(uint32_t bits) {
  e4m3 value;
  value.bits = static_cast<uint8_t>(bits);
  return value;
}

// Its value by the format's definition.
double defined_value(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 3 & 15), mantissa = static_cast<int>(bits & 7);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
  return bits & 0x80 ? -magnitude : magnitude;
}

TEST(E4m3, EveryPatternHasItsValueAndSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const float value = from_bits(bits);
    if ((bits & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(e4m3(value).bits, 0x7F);
    } else {
      EXPECT_EQ(value, defined_value(bits)) << bits;
      EXPECT_EQ(e4m3(value).bits, bits);
    }
  }
  EXPECT_EQ(float(from_bits(0x7E)), e4m3::kLargest);
}

// Every pair of neighbours of one sign: below the middle goes down, above goes up, the middle to the even one.
TEST(E4m3, RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7E; ++bits)
    for (const uint32_t sign : {0u, 0x80u}) {
      const uint32_t low = bits | sign, high = low + 1;
      const auto middle = static_cast<float>((defined_value(low) + defined_value(high)) / 2);
      EXPECT_EQ(e4m3(middle).bits, low % 2 == 0 ? low : high) << bits;
      EXPECT_EQ(e4m3(std::nextafter(middle, 0.0F)).bits, low) << bits;
      EXPECT_EQ(e4m3(std::nextafter(middle, middle * 2)).bits, high) << bits;
    }
}

TEST(E4m3, EndsAt448) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float large : {449.0F, 1e30F, infinity}) {
    EXPECT_EQ(e4m3(large).bits, 0x7E);
    EXPECT_EQ(e4m3(-large).bits, 0xFE);
  }
  EXPECT_EQ(e4m3(-0.0F).bits, 0x80);
  EXPECT_EQ(e4m3(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(e4m3(-std::nanf("")).bits, 0x7F);
}

}  // namespace
}  // namespace witan
