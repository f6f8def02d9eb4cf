// MXFP4 of OCP's Microscaling formats (v1.0, sections 5.3 and 6.3): groups of 32 elements in float4 (E2M1) with a scale
// 2^(scale - 127) for each group.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/convert/elements/rounding_error.h"

namespace witan {

inline constexpr int kMxGroup = 32;

struct MxGroup {
  uint8_t scale = 0;
  std::array<uint8_t, kMxGroup> codes{};  // of 4 bits, the sign above the magnitude

  void dequantise(float* values) const;
};

// The scale among the three nearest to the largest value's exponent that has the smallest squared error; codes rounded
// to nearest even, values beyond the largest code to it. Values that a group can hold come back the same. They must be
// finite.
MxGroup quantise_mxfp4(const float* values);

// gpt-oss's layout, two elements in a byte, the first in its lower half: as bfloat16, which holds every such value but
// those beyond its exponents. `scales` has one byte for each 16 of `blocks`.
std::vector<std::byte> dequantise_mxfp4(std::span<const std::byte> blocks, std::span<const std::byte> scales);
// Appends values, a multiple of 32, in that layout, and returns the error.
RoundingError quantise_mxfp4_pairs(std::span<const float> values, ThreadPool& pool, std::vector<std::byte>& blocks,
                                   std::vector<std::byte>& scales);

}  // namespace witan
