// How a block of numbers is scaled into e4m3: the same expressions on the CPU and on GPUs.
#pragma once

#include <bit>
#include <cstdint>

#include "witan/base/e4m3.h"

namespace witan::kernels {

struct Fp8Scale {
  float scale;    // number = e4m3 * scale
  float inverse;  // e4m3 = round(number * inverse)
};

// `largest`: the bits of the block's largest magnitude, as an integer: the bits of numbers that are not finite are
// larger than all others, and a NaN's than infinity's. Blocks below 2^-117 are scaled as if they reached it, so that
// scale and inverse are normal numbers.
constexpr Fp8Scale fp8_scale(uint32_t largest) {
  if (largest >= 0x7F800000u) return {std::bit_cast<float>(0x7FC00000u), std::bit_cast<float>(0x7FC00000u)};
  if (largest == 0) return {1, 1};
  const float magnitude = std::bit_cast<float>(largest > 0x05000000u ? largest : 0x05000000u);
  return {magnitude / e4m3::kLargest, e4m3::kLargest / magnitude};
}

}  // namespace witan::kernels
