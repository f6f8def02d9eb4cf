// Numbers of 8 bits: a sign, four bits of exponent with a bias of 7, three of mantissa ("E4M3" of Micikevicius et al.,
// "FP8 Formats for Deep Learning", 2022). From 2^-9 to 448; there are no infinities, and 7F and FF are NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace witan {

// Without branches, so that loops of conversions are vectorised.
struct e4m3 {
  static constexpr float kLargest = 448;

  uint8_t bits = 0;

  e4m3() = default;
  // Rounds to nearest even, and beyond 448 to 448; every NaN is 7F. As GPUs' cvt.rn.satfinite.e4m3x2.f32.
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

}  // namespace witan
