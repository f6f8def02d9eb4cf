// Q4_K and Q5_K: super-blocks of 256 elements, of which each group of 32 has a scale and a minimum of 6 bits. A value
// is d * scale * code - dmin * minimum, with d and dmin in float16, and codes of 4 or 5 bits.
// A block is d, dmin, 12 bytes of scales and minima, for Q5_K 32 bytes of fifth bits, and 128 bytes of pairs of groups:
// the first of a pair in lower halves, the second in upper ones.
#include <algorithm>
#include <array>
#include <cstring>

#include "witan/base/numbers/half.h"
#include "witan/convert/elements/block_codec.h"
#include "witan/convert/elements/scale_search.h"

namespace witan {
namespace k_affine {
namespace {

constexpr int kBlock = 256, kGroup = 32, kGroups = 8, kMost = 63;  // kMost: the largest number of 6 bits
constexpr int kScalesAt = 4, kScaleBytes = 12, kFifthAt = kScalesAt + kScaleBytes;

// The scales and minima of the first four groups are the lower 6 bits of 8 bytes. The other groups have their lower 4
// bits in the last 4 bytes, and their upper 2 bits above those of the first four groups.
struct GroupScales {
  std::array<unsigned, kGroups> scales{}, minima{};

  void read(const std::byte* from) {
    const auto byte = [&](int i) { return static_cast<unsigned>(from[i]); };
    for (int i = 0; i < 4; ++i) {
      const auto first = static_cast<size_t>(i), second = first + 4;
      scales[first] = byte(i) & 63U;
      minima[first] = byte(i + 4) & 63U;
      scales[second] = (byte(i + 8) & 15U) | byte(i) >> 6 << 4;
      minima[second] = byte(i + 8) >> 4 | byte(i + 4) >> 6 << 4;
    }
  }

  void write(std::byte* to) const {
    for (size_t i = 0; i < 4; ++i) {
      to[i] = static_cast<std::byte>(scales[i] | scales[i + 4] >> 4 << 6);
      to[i + 4] = static_cast<std::byte>(minima[i] | minima[i + 4] >> 4 << 6);
      to[i + 8] = static_cast<std::byte>((scales[i + 4] & 15U) | (minima[i + 4] & 15U) << 4);
    }
  }
};

template <int kBits>
constexpr int kHalvesAt = kFifthAt + (kBits == 5 ? kBlock / 8 : 0);

template <int kBits>
void dequantise(const std::byte* from, float* values) {
  f16 d, dmin;
  std::memcpy(&d, from, sizeof d);
  std::memcpy(&dmin, from + sizeof d, sizeof dmin);
  GroupScales by;
  by.read(from + kScalesAt);
  for (int group = 0; group < kGroups; ++group) {
    const auto at = static_cast<size_t>(group);
    const float scale = static_cast<float>(d) * static_cast<float>(by.scales[at]);
    const float minimum = static_cast<float>(dmin) * static_cast<float>(by.minima[at]);
    const std::byte* halves = from + kHalvesAt<kBits> + group / 2 * kGroup;
    for (int i = 0; i < kGroup; ++i) {
      unsigned code = static_cast<unsigned>(halves[i]) >> group % 2 * 4 & 15U;
      if constexpr (kBits == 5) code |= (static_cast<unsigned>(from[kFifthAt + i]) >> group & 1U) << 4;
      values[group * kGroup + i] = scale * static_cast<float>(code) - minimum;
    }
  }
}

// Chooses scales in 6 bits; a neighbour of the nearest one may fit the codes better.
struct SixBits {
  unsigned scale = 0, minimum = 0;
};
SixBits best_six_bits(std::span<const float> values, const float* weights, AffineScale wanted, float d, float dmin,
                      int levels) {
  const int scale = d > 0 ? nearest(wanted.scale / d, 0, kMost) : 0;
  const int minimum = dmin > 0 ? nearest(wanted.minimum / dmin, 0, kMost) : 0;
  SixBits best{static_cast<unsigned>(scale), static_cast<unsigned>(minimum)};
  float best_error =
      affine_error(values, weights, {d * static_cast<float>(scale), dmin * static_cast<float>(minimum)}, levels);
  for (int s = std::max(scale - 1, 0); s <= std::min(scale + 1, kMost); ++s)
    for (int m = std::max(minimum - 1, 0); m <= std::min(minimum + 1, kMost); ++m) {
      const float error =
          affine_error(values, weights, {d * static_cast<float>(s), dmin * static_cast<float>(m)}, levels);
      if (error >= best_error) continue;
      best = {static_cast<unsigned>(s), static_cast<unsigned>(m)};
      best_error = error;
    }
  return best;
}

template <int kBits>
void write_codes(const float* values, float d, float dmin, const GroupScales& by, std::byte* to) {
  constexpr int kLevels = (1 << kBits) - 1;
  std::fill(to + kFifthAt, to + kHalvesAt<kBits> + kBlock / 2, std::byte{0});
  for (int group = 0; group < kGroups; ++group) {
    const auto at = static_cast<size_t>(group);
    const AffineScale scale{d * static_cast<float>(by.scales[at]), dmin * static_cast<float>(by.minima[at])};
    std::byte* halves = to + kHalvesAt<kBits> + group / 2 * kGroup;
    for (int i = 0; i < kGroup; ++i) {
      const auto code = static_cast<unsigned>(scale.code(values[group * kGroup + i], kLevels));
      halves[i] |= static_cast<std::byte>((code & 15U) << group % 2 * 4);
      if constexpr (kBits == 5) to[kFifthAt + i] |= static_cast<std::byte>(code >> 4 << group);
    }
  }
}

template <int kBits>
void quantise(const float* values, std::byte* to) {
  constexpr int kLevels = (1 << kBits) - 1;
  std::array<float, kBlock> weights;
  std::array<AffineScale, kGroups> wanted;
  const auto group_of = [&](int group) { return std::span(values + group * kGroup, kGroup); };
  float largest_scale = 0, largest_minimum = 0;
  for (int group = 0; group < kGroups; ++group) {
    AffineScale& scale = wanted[static_cast<size_t>(group)];
    importance_of(group_of(group), weights.data() + group * kGroup);
    scale = affine_scale(group_of(group), weights.data() + group * kGroup, kLevels);
    largest_scale = std::max(largest_scale, scale.scale);
    largest_minimum = std::max(largest_minimum, scale.minimum);
  }
  const f16 d(largest_scale / kMost), dmin(largest_minimum / kMost);
  GroupScales by;
  for (int group = 0; group < kGroups; ++group) {
    const auto at = static_cast<size_t>(group);
    const SixBits best = best_six_bits(group_of(group), weights.data() + group * kGroup, wanted[at], d, dmin, kLevels);
    by.scales[at] = best.scale;
    by.minima[at] = best.minimum;
  }
  std::memcpy(to, &d, sizeof d);
  std::memcpy(to + sizeof d, &dmin, sizeof dmin);
  by.write(to + kScalesAt);
  write_codes<kBits>(values, d, dmin, by, to);
}

}  // namespace
}  // namespace k_affine

constexpr BlockCodec kQ4KCodec{Element::q4_k, k_affine::kBlock, 144, k_affine::dequantise<4>, k_affine::quantise<4>};
constexpr BlockCodec kQ5KCodec{Element::q5_k, k_affine::kBlock, 176, k_affine::dequantise<5>, k_affine::quantise<5>};

}  // namespace witan
