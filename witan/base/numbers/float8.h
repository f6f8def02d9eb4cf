// The 8-bit floating-point numbers E4M3 and E5M2 (Micikevicius et al., "FP8 Formats for Deep Learning", 2022).
// Conversions have no branches, so that loops over them vectorise.
#pragma once

#include <bit>
#include <cstdint>

namespace witan {

// A sign, four bits of exponent with a bias of 7, three of mantissa. From 2^-9 to 448; there are no infinities, and 7F
// and FF are NaN.
struct e4m3 {
  static constexpr float kLargest = 448;

  uint8_t bits = 0;

  e4m3() = default;
  // Rounds to nearest even and saturates at 448; every NaN becomes 7F, as in PTX's cvt.rn.satfinite.e4m3x2.f32.
  explicit e4m3(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value), magnitude = u & 0x7FFFFFFFu;
    const uint32_t normal = (magnitude - 0x3C000000u + 0x7FFFFu + ((magnitude >> 20) & 1u)) >> 20;
    // Subnormal results are multiples of 2^-9, to which an addition to 2^14 rounds.
    const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) - 0x46800000u;
    const uint32_t finite = magnitude < 0x3C800000u ? subnormal : normal;
    const uint32_t bounded = magnitude >= 0x43E00000u ? 0x7Eu : finite;
    bits = static_cast<uint8_t>(magnitude > 0x7F800000u ? 0x7Fu : (bounded | (u >> 24 & 0x80u)));
  }

  operator float() const {
    const uint32_t magnitude = (bits & 0x7Fu) << 20;
    // As a float32 these bits are 2^-120 times the number, subnormal ones too.
    const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p120f);
    return std::bit_cast<float>(((bits & 0x7Fu) == 0x7Fu ? 0x7FC00000u : finite) | (bits & 0x80u) << 24);
  }
};
static_assert(sizeof(e4m3) == 1);

// A sign, five bits of exponent with a bias of 15, two of mantissa: the upper half of a float16. From 2^-16 to 57344;
// 7C is infinity, and 7D to 7F are NaN.
struct e5m2 {
  static constexpr float kLargest = 57344;

  uint8_t bits = 0;

  e5m2() = default;
  // Rounds to nearest even and saturates at 57344, infinities included; every NaN becomes 7F, as in PTX's
  // cvt.rn.satfinite.e5m2x2.f32.
  explicit e5m2(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value), magnitude = u & 0x7FFFFFFFu;
    const uint32_t normal = (magnitude - 0x38000000u + 0xFFFFFu + ((magnitude >> 21) & 1u)) >> 21;
    // Subnormal results are multiples of 2^-16, to which an addition to 2^7 rounds.
    const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p7f) - 0x43000000u;
    const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    const uint32_t bounded = magnitude >= 0x47600000u ? 0x7Bu : finite;
    bits = static_cast<uint8_t>(magnitude > 0x7F800000u ? 0x7Fu : (bounded | (u >> 24 & 0x80u)));
  }

  operator float() const {
    const uint32_t magnitude = bits & 0x7Fu;
    // As a float32 these bits are 2^-112 times the number, subnormal ones too.
    const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 21) * 0x1p112f);
    const uint32_t other = magnitude == 0x7Cu ? 0x7F800000u : 0x7FC00000u;
    return std::bit_cast<float>((magnitude >= 0x7Cu ? other : finite) | (bits & 0x80u) << 24);
  }
};
static_assert(sizeof(e5m2) == 1);

}  // namespace witan
