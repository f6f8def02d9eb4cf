#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "witan/base/numbers/float8.h"
#include "witan/kernels/quantised/rules.h"

// Each format is a rule: its constructor finds the scales of a group, and a call returns the code of one value. Values
// are compared in float64, in which middles between the values of two codes are exact.

namespace witan::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
// Groups with larger magnitudes have the scale NaN: below it no code's value exceeds float32.
constexpr double kLargestMagnitude = 0x1p127;

// A scale of 0 underflowed, and every value is nearest to 0 when it is not divided.
double divisor_of(float scale) {
  return scale > 0 ? static_cast<double>(scale) : 1;
}

struct NormalFloat4Rule {
  static constexpr WeightFormat kFormat = WeightFormat::nf4;
  std::array<double, 15> middles;

  NormalFloat4Rule(const double*, double largest, float* scales) {
    scales[0] = static_cast<float>(largest);
    for (size_t code = 0; code < middles.size(); ++code)
      middles[code] =
          (static_cast<double>(rules::kNormalFloat4[code]) + static_cast<double>(rules::kNormalFloat4[code + 1])) / 2 *
          static_cast<double>(scales[0]);
  }
  // The number of middles below the value; one that is equal counts if the code above it is even.
  [[gnu::always_inline]] uint8_t operator()(double value) const {
    return [&]<size_t... kCode>(std::index_sequence<kCode...>) {
      return static_cast<uint8_t>((int64_t{kCode % 2 == 0 ? value > middles[kCode] : value >= middles[kCode]} + ...));
    }
    (std::make_index_sequence<15>());
  }
};

struct Mxfp4Rule {
  static constexpr WeightFormat kFormat = WeightFormat::mxfp4;
  double inverse;

  // 2 is the exponent of 6, the largest value of a code; the scale's exponent has 8 bits and a bias of 127.
  Mxfp4Rule(const double*, double largest, float* scales) {
    const int exponent = std::max(largest > 0 ? std::ilogb(largest) - 2 : -127, -127);
    scales[0] = std::ldexp(1.0F, exponent);
    inverse = std::ldexp(1.0, -exponent);
  }
  [[gnu::always_inline]] uint8_t operator()(double value) const { return e2m1(value * inverse).bits; }
};

struct Int4Rule {
  static constexpr WeightFormat kFormat = WeightFormat::int4;
  double divisor, zero;

  Int4Rule(const double* values, double, float* scales) {
    double least = 0, most = 0;
#pragma omp simd reduction(min : least) reduction(max : most)
    for (int64_t i = 0; i < 128; ++i) {
      least = std::min(least, values[i]);
      most = std::max(most, values[i]);
    }
    // The scale has 20 bits, so that float32 holds zero * scale exactly and the code `zero` decodes to 0.
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>((most - least) / 15));
    scales[0] = std::bit_cast<float>((bits + 15U) & ~15U);
    divisor = divisor_of(scales[0]);
    zero = std::nearbyint(-least / divisor);
    scales[1] = -static_cast<float>(zero * static_cast<double>(scales[0]));
  }
  [[gnu::always_inline]] uint8_t operator()(double value) const {
    return static_cast<uint8_t>(static_cast<int>(std::nearbyint(std::clamp(value / divisor + zero, 0.0, 15.0))));
  }
};

struct Float8Rule {
  static constexpr WeightFormat kFormat = WeightFormat::fp8;
  double divisor;

  Float8Rule(const double*, double largest, float* scales) {
    scales[0] = static_cast<float>(largest / static_cast<double>(e4m3::kLargest));
    divisor = divisor_of(scales[0]);
  }
  // Rounded to odd first, so that the second rounding does not take a value next to a middle for the middle.
  [[gnu::always_inline]] uint8_t operator()(double value) const {
    const double number = value / divisor;
    const auto near = static_cast<float>(number);
    const auto back = static_cast<double>(near);
    const uint32_t beyond = std::fabs(back) > std::fabs(number) ? 1 : 0, inexact = back != number ? 1 : 0;
    return e4m3(std::bit_cast<float>((std::bit_cast<uint32_t>(near) - beyond) | inexact)).bits;
  }
};

// A NaN is larger than all numbers.
double largest_of(const double* values, int64_t group) {
  int64_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < group; ++i) largest = std::max(largest, std::bit_cast<int64_t>(std::fabs(values[i])));
  return std::bit_cast<double>(largest);
}

// The lower halves of 8 bytes, the first in the lowest bits.
uint32_t packed(const uint8_t* codes) {
  uint64_t bits = 0;
  std::memcpy(&bits, codes, sizeof bits);
  bits = (bits | bits >> 4) & 0x00FF00FF00FF00FFU;
  bits = (bits | bits >> 8) & 0x0000FFFF0000FFFFU;
  return static_cast<uint32_t>(bits | bits >> 16);
}

template <class Rule>
void encode_groups(std::span<const double> values, uint32_t* words, float* scales) {
  const WeightFormatTraits& traits = traits_of(Rule::kFormat);
  constexpr int64_t kLongest = 128;
  std::array<uint8_t, kLongest> codes;
  const int64_t group = traits.group, n = std::ssize(values);
  for (int64_t first = 0; first < n; first += group, words += traits.words(group), scales += traits.scales) {
    const double* const from = values.data() + first;
    const double largest = largest_of(from, group);
    if (!(largest <= kLargestMagnitude)) {
      std::fill_n(words, traits.words(group), 0U);
      std::fill_n(scales, traits.scales, kNaN);
      continue;
    }
    const Rule rule(from, largest, scales);
#pragma omp simd
    for (int64_t i = 0; i < group; ++i) codes[static_cast<size_t>(i)] = rule(from[i]);
    if (traits.bits == 8)
      std::memcpy(words, codes.data(), static_cast<size_t>(group));
    else
      for (int64_t i = 0; i < group; i += 8) words[i / 8] = packed(codes.data() + i);
  }
}

}  // namespace

void encode_weights(WeightFormat format, std::span<const double> values, std::span<uint32_t> words,
                    std::span<float> scales) {
  const WeightFormatTraits& traits = traits_of(format);
  assert(std::ssize(values) % traits.group == 0 && std::ssize(words) == traits.words(std::ssize(values)) &&
         std::ssize(scales) == traits.numbers(std::ssize(values)));
  switch (format) {
    case WeightFormat::nf4:
      return encode_groups<NormalFloat4Rule>(values, words.data(), scales.data());
    case WeightFormat::mxfp4:
      return encode_groups<Mxfp4Rule>(values, words.data(), scales.data());
    case WeightFormat::int4:
      return encode_groups<Int4Rule>(values, words.data(), scales.data());
    case WeightFormat::fp8:
      return encode_groups<Float8Rule>(values, words.data(), scales.data());
    case WeightFormat::none:
      break;
  }
  assert(false && "weights that are not coded have no codes");
}

}  // namespace witan::kernels
