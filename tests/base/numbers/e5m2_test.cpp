#include "witan/base/numbers/e5m2.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace witan {
namespace {

// Its value by the format's definition.
double defined_value(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 2 & 31), mantissa = static_cast<int>(bits & 3);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -16) : std::ldexp(1 + mantissa / 4.0, exponent - 15);
  return bits & 0x80 ? -magnitude : magnitude;
}

TEST(E5m2, EveryPatternHasItsValueAndSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const float value = std::bit_cast<e5m2>(static_cast<uint8_t>(bits));
    const uint32_t magnitude = bits & 0x7F;
    if (magnitude > 0x7C) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(e5m2(value).bits, 0x7F);
    } else if (magnitude == 0x7C) {
      EXPECT_TRUE(std::isinf(value));
      EXPECT_EQ(std::signbit(value), bits > 0x7F);
    } else {
      EXPECT_EQ(value, defined_value(bits)) << bits;
      EXPECT_EQ(e5m2(value).bits, bits);
    }
  }
  EXPECT_EQ(float(std::bit_cast<e5m2>(uint8_t{0x7B})), e5m2::kLargest);
}

// Every pair of neighbours of one sign: below the middle goes down, above goes up, the middle to the even one.
TEST(E5m2, RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7B; ++bits)
    for (const uint32_t sign : {0u, 0x80u}) {
      const uint32_t low = bits | sign, high = low + 1;
      const auto middle = static_cast<float>((defined_value(low) + defined_value(high)) / 2);
      EXPECT_EQ(e5m2(middle).bits, low % 2 == 0 ? low : high) << bits;
      EXPECT_EQ(e5m2(std::nextafter(middle, 0.0F)).bits, low) << bits;
      EXPECT_EQ(e5m2(std::nextafter(middle, middle * 2)).bits, high) << bits;
    }
}

TEST(E5m2, EndsAt57344) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float large : {57345.0F, 61440.0F, 65536.0F, 1e30F, infinity}) {
    EXPECT_EQ(e5m2(large).bits, 0x7B);
    EXPECT_EQ(e5m2(-large).bits, 0xFB);
  }
  EXPECT_EQ(e5m2(-0.0F).bits, 0x80);
  EXPECT_EQ(e5m2(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(e5m2(-std::nanf("")).bits, 0x7F);
}

}  // namespace
}  // namespace witan
