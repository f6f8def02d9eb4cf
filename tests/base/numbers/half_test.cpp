#include "witan/base/numbers/half.h"

#include <gtest/gtest.h>

#include <array>
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

TEST(Bf16, RoundTripsEveryPattern) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = from_bits(static_cast<uint16_t>(bits));
    if (std::isnan(value))
      EXPECT_TRUE(std::isnan(float(bf16(value)))) << bits;
    else
      EXPECT_EQ(bf16(value).bits, bits);
  }
}

// For each pair of neighbours of one sign: below the midpoint rounds down, above rounds up, and the midpoint to even.
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
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()).bits, 0x7F80);  // rounds to infinity
  // A NaN whose payload is in the lower half must not become infinity, nor wrap around to zero.
  for (const uint32_t nan : {0x7F800001u, 0xFF800001u, 0x7FFFFFFFu, 0xFFFFFFFFu, 0x7FC00000u})
    EXPECT_TRUE(std::isnan(float(bf16(float_of(nan))))) << nan;
}

TEST(Bf16, AccumulatesInFloat) {
  static_assert(std::is_same_v<Accumulator<bf16>, float>);
  static_assert(std::is_same_v<Accumulator<float>, float>);
  static_assert(std::is_same_v<Accumulator<double>, double>);
  EXPECT_EQ(float(bf16(1.5)), 1.5f);
}

// Converts with the compiler's _Float16.
uint16_t compilers(float value) {
  return std::bit_cast<uint16_t>(static_cast<_Float16>(value));
}
f16 of_bits(uint32_t bits) {
  f16 value;
  value.bits = static_cast<uint16_t>(bits);
  return value;
}

TEST(F16, DecodesAndRoundTripsEveryPattern) {
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

// Numbers of every exponent, including those just beside midpoints between neighbours.
TEST(F16, RoundsLikeTheCompiler) {
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
  EXPECT_EQ(float(f16(0x1p-25f)), 0) << "a tie rounds to even";
  EXPECT_EQ(float(f16(0x1.01p-25f)), 0x1p-24f);
}

float upper_of(float value) {
  return float_of(uint32_t{split(value).upper} << 16);
}

// Every lower half with several upper halves: zero, denormals, values around powers of two, the largest number,
// infinity.
TEST(SplitFloat, RoundTripsEveryLowerHalf) {
  constexpr std::array<uint32_t, 13> kUpper = {0x0000, 0x0001, 0x007F, 0x0080, 0x0100, 0x3F7F, 0x3F80,
                                               0x3F81, 0x4049, 0x7EFF, 0x7F00, 0x7F7E, 0x7F7F};
  for (const uint32_t upper : kUpper)
    for (const uint32_t sign : {0u, 0x8000u})
      for (uint32_t lower = 0; lower < 0x10000; ++lower) {
        const uint32_t bits = (upper | sign) << 16 | lower;
        ASSERT_EQ(std::bit_cast<uint32_t>(join(split(float_of(bits)))), bits);
      }
  for (const float infinity : {HUGE_VALF, -HUGE_VALF}) {
    EXPECT_EQ(join(split(infinity)), infinity);
    EXPECT_EQ(split(infinity).lower, 0);
  }
}

// For each pair of neighbours of one sign: rounds like bfloat16, except at midpoints.
TEST(SplitFloat, UpperHalfIsTheNearestBf16WithTiesAwayFromZero) {
  for (uint32_t bits = 0; bits < 0x7F80; ++bits)
    for (const uint32_t sign : {0u, 0x8000u}) {
      const uint32_t low = bits | sign;
      for (const uint32_t rest : {0x0000u, 0x0001u, 0x7FFFu, 0x8001u, 0xFFFFu}) {
        const float value = float_of(low << 16 | rest);
        ASSERT_EQ(split(value).upper, bf16(value).bits) << value;
      }
      ASSERT_EQ(split(float_of(low << 16 | 0x8000)).upper, low + 1);
    }
}

TEST(SplitFloat, Bf16ValuesHaveAZeroRemainder) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = float_of(bits << 16);
    if (std::isnan(value)) continue;
    ASSERT_EQ(split(value).upper, bits);
    ASSERT_EQ(split(value).lower, 0);
  }
}

// No payload may carry into the sign or become infinity.
TEST(SplitFloat, KeepsNaNs) {
  for (const uint32_t nan :
       {0x7F800001u, 0xFF800001u, 0x7F807FFFu, 0x7FC00000u, 0x7FFF8000u, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
    EXPECT_TRUE(std::isnan(upper_of(float_of(nan)))) << nan;
    EXPECT_EQ(std::bit_cast<uint32_t>(join(split(float_of(nan)))), 0x7FC00000u) << nan;
  }
}

// Numbers of every exponent that does not overflow float16.
TEST(SplitFloat, Float16AndRemainderRestoreTheNumber) {
  for (uint32_t upper = 0; upper < 0x10000; ++upper)
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x0FFFu, 0x1000u, 0x1001u, 0x7A5Bu, 0xFFFFu}) {
      const float value = float_of(upper << 16 | lower);
      if (!(std::abs(value) < 65520)) continue;
      const f16 narrow(value);
      ASSERT_EQ(std::bit_cast<uint32_t>(join(narrow, rest_of(value, narrow)) + 0.0f),
                std::bit_cast<uint32_t>(value + 0.0f))  // ignoring the sign of zero
          << upper << " " << lower;
    }
  for (const float value : {HUGE_VALF, -HUGE_VALF, 1e6f, -65520.0f, std::nanf("")}) {
    const f16 narrow(value);
    EXPECT_EQ(rest_of(value, narrow), 0);
    EXPECT_FALSE(std::isfinite(join(narrow, 0)));
  }
}

}  // namespace
}  // namespace witan
