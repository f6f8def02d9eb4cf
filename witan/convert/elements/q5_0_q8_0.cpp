// Q5_0 and Q8_0: 32 whole numbers of 5 or 8 bits with a scale in float16 before them.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "witan/base/numbers/half.h"
#include "witan/convert/elements/block_codec.h"
#include "witan/convert/elements/scale_search.h"

namespace witan {

// Whole numbers from -16 on. Their fifth bits stand in 4 bytes, then the others in 16: element j in a lower half, j +
// 16 in an upper.
namespace q5_0 {
namespace {

constexpr int kBlock = 32, kHalf = kBlock / 2, kLow = -16, kHigh = 15;

void dequantise(const std::byte* from, float* values) {
  f16 scale;
  uint32_t fifth = 0;
  std::memcpy(&scale, from, sizeof scale);
  std::memcpy(&fifth, from + sizeof scale, sizeof fifth);
  const std::byte* halves = from + sizeof scale + sizeof fifth;
  for (int i = 0; i < kBlock; ++i) {
    const unsigned both = static_cast<unsigned>(halves[i % kHalf]);
    const unsigned code = (i < kHalf ? both & 15U : both >> 4) | (fifth >> i & 1U) << 4;
    values[i] = static_cast<float>(scale) * static_cast<float>(static_cast<int>(code) + kLow);
  }
}

void quantise(const float* values, std::byte* to) {
  std::array<float, kBlock> weights;
  importance_of({values, kBlock}, weights.data());
  const f16 scale(symmetric_scale({values, kBlock}, weights.data(), kLow, kHigh));
  const float step = scale, inverse = step != 0 ? 1 / step : 0;
  uint32_t fifth = 0;
  std::array<unsigned, kHalf> halves{};
  for (int i = 0; i < kBlock; ++i) {
    const auto code = static_cast<unsigned>(nearest(values[i] * inverse, kLow, kHigh) - kLow);
    fifth |= (code >> 4) << i;
    halves[static_cast<size_t>(i % kHalf)] |= (code & 15U) << (i < kHalf ? 0 : 4);
  }
  std::memcpy(to, &scale, sizeof scale);
  std::memcpy(to + sizeof scale, &fifth, sizeof fifth);
  for (int i = 0; i < kHalf; ++i)
    to[sizeof scale + sizeof fifth + static_cast<size_t>(i)] = static_cast<std::byte>(halves[static_cast<size_t>(i)]);
}

}  // namespace
}  // namespace q5_0

constexpr BlockCodec kQ5_0Codec{Element::q5_0, q5_0::kBlock, 22, q5_0::dequantise, q5_0::quantise};

// Rounded as quantize_row_q8_0_ref() in ggml-quants.c does, so that what was dequantised becomes the same bytes again.
namespace q8_0 {
namespace {

constexpr int kBlock = 32;

void dequantise(const std::byte* from, float* values) {
  f16 scale;
  std::memcpy(&scale, from, sizeof scale);
  for (int i = 0; i < kBlock; ++i)
    values[i] = static_cast<float>(scale) * static_cast<float>(static_cast<int8_t>(from[sizeof scale + i]));
}

void quantise(const float* values, std::byte* to) {
  float largest = 0;
  for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(values[i]));
  const float step = largest / 127, inverse = step != 0 ? 1 / step : 0;
  const f16 scale(step);
  std::memcpy(to, &scale, sizeof scale);
  for (int i = 0; i < kBlock; ++i)
    to[sizeof scale + i] = static_cast<std::byte>(static_cast<int8_t>(std::round(values[i] * inverse)));
}

}  // namespace
}  // namespace q8_0

constexpr BlockCodec kQ8_0Codec{Element::q8_0, q8_0::kBlock, 34, q8_0::dequantise, q8_0::quantise};

}  // namespace witan
