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

// Converts without branches, so that loops of conversions vectorise.
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

// Splits a float32 master weight into a 16-bit number and a remainder. The model computes with the 16-bit number; only
// the optimizer reads the remainder.
//
// With bfloat16 the remainder has 16 bits: the two are halves of the float32, and the upper one is the nearest
// bfloat16.
//
//   upper = (bits + 2^15) >> 16     lower = bits mod 2^16     bits = 2^16 upper + lower, lower taken as a signed number
//
// Ties round away from zero, not to even: rounding to even would leave a remainder of 2^15 for half of the ties, which
// 16 signed bits cannot hold. Joining restores the float32 to the bit, except that every NaN becomes the quiet NaN
// 7FC00000; otherwise some NaNs would round to zero. Finite numbers from 2^128 - 2^119 round to infinity, as they do to
// nearest even, and are restored nevertheless.
//
// A float16 has fewer exponent bits, so that 16 bits cannot hold the remainder. It is a float32, which is exact.
//
//   narrow = the nearest float16, ties to even     rest = master - narrow     master = narrow + rest
//
// From 65520 on the nearest float16 is infinite and the remainder is 0. Joining gives that infinity, and NaN for NaN.
struct SplitFloat {
  uint16_t upper, lower;
};

// Callable on the host and in GPU kernels.
constexpr SplitFloat split(float value) {
  const uint32_t bits = value != value ? 0x7FC00000u : std::bit_cast<uint32_t>(value);
  return {static_cast<uint16_t>((bits + 0x8000u) >> 16), static_cast<uint16_t>(bits)};
}
constexpr float join(SplitFloat halves) {
  const auto lower = static_cast<uint32_t>(int32_t{static_cast<int16_t>(halves.lower)});
  return std::bit_cast<float>((uint32_t{halves.upper} << 16) + lower);
}

inline float rest_of(float master, f16 narrow) {
  return (narrow.bits & 0x7C00u) == 0x7C00u ? 0.0f : master - float(narrow);
}
inline float join(f16 narrow, float rest) {
  return float(narrow) + rest;
}

}  // namespace witan
