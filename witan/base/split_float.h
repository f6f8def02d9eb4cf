// A float32 in two halves of 16 bits: the nearest bfloat16, and the rest. A master weight is kept so: the upper half is
// the weight itself, with which the model computes; the lower one is the optimizer's alone.
//
//   upper = (bits + 2^15) >> 16     lower = bits mod 2^16     bits = 2^16 upper + lower, lower taken as a signed number
//
// Ties are rounded away from zero, not to even: half of the even ones would leave a rest of 2^15, which 16 signed bits
// do not hold. Joined halves are the float32 to the bit, with one exception: every NaN becomes the quiet NaN 7FC00000,
// or some would round to zero. Finite numbers from 2^128 - 2^119 round to infinity, as they do to nearest even, and
// come back all the same.
#pragma once

#include <bit>
#include <cstdint>

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

}  // namespace witan
