#include "witan/base/half.h"

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

}  // namespace
}  // namespace witan
