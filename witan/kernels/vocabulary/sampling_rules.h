// The weights of tokens (sampling.h), computed with the same operations by the CPU's and CUDA's twins: products and
// sums are fused where it is written, and nowhere else.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "witan/kernels/vocabulary/sampling.h"

#if defined(__CUDACC__)
#define WITAN_SAMPLING_RULE __device__ __forceinline__
#else
#define WITAN_SAMPLING_RULE [[gnu::always_inline]] inline
#endif

namespace witan::kernels::rules {

inline constexpr float kMostHalvings = 38;  // tokens with more have no weight

// How often the likeliest token's weight is halved, about, for a logit that is lower by `below`; it never decreases if
// `below` grows. NaN for infinity times 0.
WITAN_SAMPLING_RULE float halvings_of(float below, const SamplingRow& row) {
  return below * row.octaves;
}

// 2^39 2^-(below (octaves + octaves_low)), truncated; within 2^-22 of it where it is not small. The power is that of an
// integer times a polynomial on [-1/2, 1/2] whose error is 2^-29.
WITAN_SAMPLING_RULE uint64_t weight_of(float below, const SamplingRow& row) {
  const float halvings = halvings_of(below, row), whole = rintf(halvings);
  const float part = fmaf(-below, row.octaves_low, fmaf(-below, row.octaves, whole));
  float p = 0x1.41fbb6p-13f;
  p = fmaf(p, part, 0x1.5f3e56p-10f);
  p = fmaf(p, part, 0x1.3b2d4ep-7f);
  p = fmaf(p, part, 0x1.c6aee8p-5f);
  p = fmaf(p, part, 0x1.ebfbdcp-3f);
  p = fmaf(p, part, 0x1.62e43p-1f);
  p = fmaf(p, part, 1.0f);
  // p is in [1/2, 2): its exponent and its 24 bits. Both would be undefined for a halvings that is not small.
  const auto bits = std::bit_cast<uint32_t>(p);
  const bool counts = halvings <= kMostHalvings;
  const int right = counts ? static_cast<int>(whole) + 127 - static_cast<int>(bits >> 23) : 0;
  const uint64_t significand = static_cast<uint64_t>((bits & 0x7fffffu) | 0x800000u) << 16;
  return counts ? significand >> right : 0;
}

// The weight of the tokens that min-p keeps, 0 for others.
WITAN_SAMPLING_RULE uint64_t kept_weight_of(float below, const SamplingRow& row) {
  const uint64_t weight = weight_of(below, row);
  return weight < row.least_weight ? 0 : weight;
}

// The least whole weight that is the share top_p of a total, from 1 to the total.
WITAN_SAMPLING_RULE uint64_t share_of(uint64_t total, double top_p) {
  const double wanted = ceil(static_cast<double>(total) * top_p);
  if (!(wanted >= 1)) return 1;
  return wanted < static_cast<double>(total) ? static_cast<uint64_t>(wanted) : total;
}

// The point below the total, at which a token is drawn.
WITAN_SAMPLING_RULE uint64_t drawn_of(uint64_t total, uint32_t draw) {
  const uint64_t high = (total >> 32) * draw, low = (total & 0xffffffffu) * draw;
  return high + (low >> 32);
}

}  // namespace witan::kernels::rules
