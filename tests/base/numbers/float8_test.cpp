#include "witan/base/numbers/float8.h"

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

// The value of these bits by the format's definition.
double exact_value(uint32_t bits, int mantissa_bits, int bias) {
  const int exponent = static_cast<int>(bits & 0x7F) >> mantissa_bits;
  const double fraction = std::ldexp(bits & ((1u << mantissa_bits) - 1), -mantissa_bits);
  const double magnitude = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return bits & 0x80 ? -magnitude : magnitude;
}
double e4m3_value(uint32_t bits) {
  return exact_value(bits, 3, 7);
}
double e5m2_value(uint32_t bits) {
  return exact_value(bits, 2, 15);
}

TEST(E4m3, EveryPatternHasItsValueAndSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const float value = from_bits(bits);
    if ((bits & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(e4m3(value).bits, 0x7F);
    } else {
      EXPECT_EQ(value, e4m3_value(bits)) << bits;
      EXPECT_EQ(e4m3(value).bits, bits);
    }
  }
  EXPECT_EQ(float(from_bits(0x7E)), e4m3::kLargest);
}

// Between each pair of neighbours: just below the midpoint rounds down, just above rounds up, the midpoint to even.
TEST(E4m3, RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7E; ++bits)
    for (const uint32_t sign : {0u, 0x80u}) {
      const uint32_t low = bits | sign, high = low + 1;
      const auto middle = static_cast<float>((e4m3_value(low) + e4m3_value(high)) / 2);
      EXPECT_EQ(e4m3(middle).bits, low % 2 == 0 ? low : high) << bits;
      EXPECT_EQ(e4m3(std::nextafter(middle, 0.0F)).bits, low) << bits;
      EXPECT_EQ(e4m3(std::nextafter(middle, middle * 2)).bits, high) << bits;
    }
}

TEST(E4m3, SaturatesAt448) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float large : {449.0F, 1e30F, infinity}) {
    EXPECT_EQ(e4m3(large).bits, 0x7E);
    EXPECT_EQ(e4m3(-large).bits, 0xFE);
  }
  EXPECT_EQ(e4m3(-0.0F).bits, 0x80);
  EXPECT_EQ(e4m3(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(e4m3(-std::nanf("")).bits, 0x7F);
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
      EXPECT_EQ(value, e5m2_value(bits)) << bits;
      EXPECT_EQ(e5m2(value).bits, bits);
    }
  }
  EXPECT_EQ(float(std::bit_cast<e5m2>(uint8_t{0x7B})), e5m2::kLargest);
}

// Between each pair of neighbours: just below the midpoint rounds down, just above rounds up, the midpoint to even.
TEST(E5m2, RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7B; ++bits)
    for (const uint32_t sign : {0u, 0x80u}) {
      const uint32_t low = bits | sign, high = low + 1;
      const auto middle = static_cast<float>((e5m2_value(low) + e5m2_value(high)) / 2);
      EXPECT_EQ(e5m2(middle).bits, low % 2 == 0 ? low : high) << bits;
      EXPECT_EQ(e5m2(std::nextafter(middle, 0.0F)).bits, low) << bits;
      EXPECT_EQ(e5m2(std::nextafter(middle, middle * 2)).bits, high) << bits;
    }
}

TEST(E5m2, SaturatesAt57344) {
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
