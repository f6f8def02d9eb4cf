// Q6_K: super-blocks of 256 elements, of which each group of 16 has a scale of 8 bits. A value is d * scale * code,
// with d in float16 and codes of 6 bits from -32 on. A block is 128 bytes of the codes' lower 4 bits, 64 of the upper
// 2, 16 scales, and d. Each half of a block has four runs of 32 elements: the first two in the lower halves of its 64
// bytes, the others in the upper ones; element i of all four has its upper bits in one byte.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "witan/base/numbers/half.h"
#include "witan/convert/elements/block_codec.h"
#include "witan/convert/elements/scale_search.h"

namespace witan {
namespace q6_k {
namespace {

constexpr int kBlock = 256, kGroup = 16, kGroups = 16, kLow = -32, kHigh = 31;
constexpr int kUpperAt = 128, kScalesAt = 192, kScaleAt = 208, kBytes = 210;

// The place of element i's bits.
struct Place {
  int lower, lower_shift, upper, upper_shift;

  explicit Place(int i) {
    const int half = i / 128, run = i % 128 / 32, in_run = i % 32;
    lower = half * 64 + run % 2 * 32 + in_run;
    lower_shift = run / 2 * 4;
    upper = kUpperAt + half * 32 + in_run;
    upper_shift = run * 2;
  }
};

void dequantise(const std::byte* from, float* values) {
  f16 d;
  std::memcpy(&d, from + kScaleAt, sizeof d);
  for (int i = 0; i < kBlock; ++i) {
    const Place place(i);
    const unsigned code = (static_cast<unsigned>(from[place.lower]) >> place.lower_shift & 15U) |
                          (static_cast<unsigned>(from[place.upper]) >> place.upper_shift & 3U) << 4;
    const float scale = static_cast<float>(d) * static_cast<float>(static_cast<int8_t>(from[kScalesAt + i / kGroup]));
    values[i] = scale * static_cast<float>(static_cast<int>(code) + kLow);
  }
}

// Chooses a scale in 8 bits; a neighbour of the nearest one may fit better.
int best_scale(std::span<const float> values, const float* weights, float wanted, float d) {
  const int first = d != 0 ? nearest(wanted / d, -128, 127) : 0;
  int best = first;
  float best_error = symmetric_error(values, weights, d * static_cast<float>(first), kLow, kHigh);
  for (int scale = std::max(first - 1, -128); scale <= std::min(first + 1, 127); ++scale)
    if (const float error = symmetric_error(values, weights, d * static_cast<float>(scale), kLow, kHigh);
        error < best_error) {
      best = scale;
      best_error = error;
    }
  return best;
}

void quantise(const float* values, std::byte* to) {
  std::array<float, kBlock> weights;
  std::array<float, kGroups> wanted;
  float largest = 0;
  for (int group = 0; group < kGroups; ++group) {
    const std::span of(values + group * kGroup, kGroup);
    float& scale = wanted[static_cast<size_t>(group)];
    importance_of(of, weights.data() + group * kGroup);
    scale = symmetric_scale(of, weights.data() + group * kGroup, kLow, kHigh);
    if (std::fabs(scale) > std::fabs(largest)) largest = scale;
  }
  const f16 d(largest / -128);
  std::fill(to, to + kBytes, std::byte{0});
  std::memcpy(to + kScaleAt, &d, sizeof d);
  for (int group = 0; group < kGroups; ++group) {
    const int scale = best_scale({values + group * kGroup, kGroup}, weights.data() + group * kGroup,
                                 wanted[static_cast<size_t>(group)], d);
    to[kScalesAt + group] = static_cast<std::byte>(static_cast<int8_t>(scale));
    const float step = static_cast<float>(d) * static_cast<float>(scale), inverse = step != 0 ? 1 / step : 0;
    for (int i = group * kGroup; i < (group + 1) * kGroup; ++i) {
      const Place place(i);
      const auto code = static_cast<unsigned>(nearest(values[i] * inverse, kLow, kHigh) - kLow);
      to[place.lower] |= static_cast<std::byte>((code & 15U) << place.lower_shift);
      to[place.upper] |= static_cast<std::byte>(code >> 4 << place.upper_shift);
    }
  }
}

}  // namespace
}  // namespace q6_k

constexpr BlockCodec kQ6KCodec{Element::q6_k, q6_k::kBlock, q6_k::kBytes, q6_k::dequantise, q6_k::quantise};

}  // namespace witan
