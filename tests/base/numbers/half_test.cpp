#include "witan/base/numbers/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <type_traits>

namespace witan {
namespace {

bf16 from_bits(uint16_t bits) {
  bf16 value;
  value.bits = bits;
  return value;
}

float float_of(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

TEST(Bf16, EveryPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = from_bits(static_cast<uint16_t>(bits));
    if (std::isnan(value))
      EXPECT_TRUE(std::isnan(float(bf16(value)))) << bits;
    else
      EXPECT_EQ(bf16(value).bits, bits);
  }
}

// Every pair of neighbours of one sign: below the middle goes down, above goes up, the middle to the even one.
TEST(Bf16, RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7F80; ++bits) {
    for (const uint32_t sign : {0u, 0x8000u}) {
      const uint32_t low = bits | sign, high = low + 1;
      EXPECT_EQ(bf16(float_of(low << 16 | 0x7FFF)).bits, low);
      EXPECT_EQ(bf16(float_of(low << 16 | 0x8001)).bits, high);
      EXPECT_EQ(bf16(float_of(low << 16 | 0x8000)).bits, low % 2 == 0 ? low : high);
    }
  }
}

TEST(Bf16, KeepsSpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(bf16(infinity).bits, 0x7F80);
  EXPECT_EQ(bf16(-infinity).bits, 0xFF80);
  EXPECT_EQ(bf16(-0.0f).bits, 0x8000);
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()).bits, 0x7F80);  // nearer to infinity's place than to the largest
  // A NaN whose payload sits in the lower half must not turn into an infinity, nor wrap round to zero.
  for (const uint32_t nan : {0x7F800001u, 0xFF800001u, 0x7FFFFFFFu, 0xFFFFFFFFu, 0x7FC00000u})
    EXPECT_TRUE(std::isnan(float(bf16(float_of(nan))))) << nan;
}

TEST(Bf16, SumsAreWider) {
  static_assert(std::is_same_v<Accumulator<bf16>, float>);
  static_assert(std::is_same_v<Accumulator<float>, float>);
  static_assert(std::is_same_v<Accumulator<double>, double>);
  EXPECT_EQ(float(bf16(1.5)), 1.5f);
}

// The compiler's own type, which is the same format.
uint16_t compilers(float value) {
  return std::bit_cast<uint16_t>(static_cast<_Float16>(value));
}
f16 of_bits(uint32_t bits) {
  f16 value;
  value.bits = static_cast<uint16_t>(bits);
  return value;
}

TEST(F16, EveryPatternIsTheNumberThatItStandsFor) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = of_bits(bits), expected = std::bit_cast<_Float16>(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(std::isnan(float(f16(value)))) << bits;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(expected)) << bits;
      EXPECT_EQ(f16(value).bits, bits);
    }
  }
}

// Numbers of every exponent, those just beside the middles between neighbours among them.
TEST(F16, RoundsAsTheCompiler) {
  for (uint32_t upper = 0; upper < 0x10000; ++upper)
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x0FFFu, 0x1000u, 0x1001u, 0x2000u, 0x3000u, 0x8000u, 0xFFFFu}) {
      const float value = float_of(upper << 16 | lower);
      if (std::isnan(value))
        ASSERT_TRUE(std::isnan(float(f16(value)))) << upper;
      else
        ASSERT_EQ(f16(value).bits, compilers(value)) << upper << " " << lower;
    }
  EXPECT_EQ(float(f16(65519.0f)), 65504);
  EXPECT_EQ(float(f16(65520.0f)), HUGE_VALF);
  EXPECT_EQ(float(f16(0x1p-25f)), 0) << "the middle to the even one";
  EXPECT_EQ(float(f16(0x1.01p-25f)), 0x1p-24f);
}

}  // namespace
}  // namespace witan
