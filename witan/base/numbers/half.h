// bfloat16, the upper half of a float32, and float16, IEEE 754's binary16. Stored in 16 bits, computed with in float32.
#pragma once

#include <bit>
#include <cstdint>

namespace witan {

struct bf16 {
  uint16_t bits = 0;

  bf16() = default;
  // Rounds to nearest even; a NaN stays a (quiet) NaN.
  explicit bf16(float value) {
    uint32_t u = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = u + 0x7FFFu + ((u >> 16) & 1u);
    const bool is_nan = (u & 0x7FFFFFFFu) > 0x7F800000u;
    bits = static_cast<uint16_t>((is_nan ? (u | 0x00400000u) : rounded) >> 16);
  }
  explicit bf16(double value) : bf16(static_cast<float>(value)) {}

  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};
static_assert(sizeof(bf16) == 2);

// Without branches, so that loops of conversions are vectorised.
struct f16 {
  uint16_t bits = 0;

  f16() = default;
  // Rounds to nearest even, to infinity from 65520; a NaN stays a (quiet) NaN.
  explicit f16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value), magnitude = u & 0x7FFFFFFFu;
    const uint32_t normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    // Subnormal results are multiples of 2^-24, to which an addition to 0.5 rounds.
    const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
    const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    const uint32_t special = magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u;
    bits = static_cast<uint16_t>((magnitude >= 0x477FF000u ? special : finite) | (u >> 16 & 0x8000u));
  }
  explicit f16(double value) : f16(static_cast<float>(value)) {}

  operator float() const {
    const uint32_t u = bits, magnitude = (u & 0x7FFFu) << 13;
    // As a float32 these bits are 2^-112 times the number, subnormal ones too.
    const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
    const uint32_t special = magnitude | 0x7F800000u;
    return std::bit_cast<float>(((u & 0x7C00u) == 0x7C00u ? special : finite) | (u & 0x8000u) << 16);
  }
};
static_assert(sizeof(f16) == 2);

// Accumulator<T>: the type in which sums over T are formed.
template <class T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

}  // namespace witan
