// Numbers of 8 bits: a sign, five bits of exponent with a bias of 15, two of mantissa ("E5M2" of Micikevicius et al.,
// "FP8 Formats for Deep Learning", 2022). From 2^-16 to 57344; 7C is infinite, and 7D to 7F are NaN, as in float16,
// whose upper half it is.
#pragma once

#include <bit>
#include <cstdint>

namespace witan {

// Without branches, so that loops of conversions are vectorised.
struct e5m2 {
  static constexpr float kLargest = 57344;

  uint8_t bits = 0;

  e5m2() = default;
  // Rounds to nearest even, and beyond 57344 to 57344, infinity too; every NaN is 7F. As GPUs'
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
