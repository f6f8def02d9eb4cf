// A float32 as a number of 16 bits and what it has beyond it. A master weight is kept so: the first is the weight
// itself, with which the model computes; the other is the optimizer's alone.
//
// Beside a bfloat16 the rest has 16 bits: the two are halves of the float32, the upper one its nearest bfloat16.
//
//   upper = (bits + 2^15) >> 16     lower = bits mod 2^16     bits = 2^16 upper + lower, lower taken as a signed number
//
// Ties are rounded away from zero, not to even: half of the even ones would leave a rest of 2^15, which 16 signed bits
// do not hold. Joined halves are the float32 to the bit, with one exception: every NaN becomes the quiet NaN 7FC00000,
// or some would round to zero. Finite numbers from 2^128 - 2^119 round to infinity, as they do to nearest even, and
// come back all the same.
//
// A float16 has fewer bits of exponent, so that 16 bits do not hold the rest: it is a float32, which is exact.
//
//   narrow = the nearest float16, ties to even     rest = master - narrow     master = narrow + rest
//
// From 65520 on the nearest float16 is infinite, the rest is 0, and what is joined is that infinity, as it is for NaN.
#pragma once

#include <bit>
#include <cstdint>

#include "witan/base/numbers/half.h"

namespace witan {

struct SplitFloat {
  uint16_t upper, lower;
};

// On the host and in kernels of GPUs.
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
