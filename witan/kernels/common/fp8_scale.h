// How numbers are scaled into e4m3 and e5m2: the same expressions on the CPU and on GPUs.
#pragma once

#include <bit>
#include <cstdint>

#include "witan/base/numbers/float8.h"

namespace witan::kernels {

enum class Fp8Format : uint8_t { e4m3, e5m2 };

struct Fp8Scale {
  float scale;    // number = code * scale
  float inverse;  // code = round(number * inverse)
};

// `largest`: the bits of the magnitude that becomes the format's largest number, as an integer: the bits of numbers
// that are not finite are larger than all others, and a NaN's than infinity's. Magnitudes below 2^-117 (e5m2: 2^-110)
// count as that, so that scale and inverse are normal numbers.
constexpr Fp8Scale fp8_scale(uint32_t largest, Fp8Format format) {
  if (largest >= 0x7F800000u) return {std::bit_cast<float>(0x7FC00000u), std::bit_cast<float>(0x7FC00000u)};
  if (largest == 0) return {1, 1};
  const uint32_t least = format == Fp8Format::e4m3 ? 0x05000000u : 0x08800000u;
  const float magnitude = std::bit_cast<float>(largest > least ? largest : least);
  const float most = format == Fp8Format::e4m3 ? e4m3::kLargest : e5m2::kLargest;
  return {magnitude / most, most / magnitude};
}

// The scale if the magnitude is `given`, for all blocks of a tensor. A block with a number that is not finite is NaN,
// as if it were scaled by its own largest.
constexpr Fp8Scale fp8_scale(uint32_t largest, uint32_t given, Fp8Format format) {
  return fp8_scale(largest >= 0x7F800000u ? largest : given, format);
}

// The group of a block of rows. begin(g): the first block of group g, of so many; groups follow one another.
template <class Begin>
constexpr int64_t fp8_group_of(int64_t block, int64_t groups, const Begin& begin) {
  int64_t low = 0, high = groups;  // low's is not behind the block, high's is
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (begin(middle) <= block ? low : high) = middle;
  }
  return low;
}

}  // namespace witan::kernels
