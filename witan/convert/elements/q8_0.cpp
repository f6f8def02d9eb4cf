// Q8_0: 32 whole numbers of 8 bits with a scale in float16 before them, rounded as quantize_row_q8_0_ref() in
// ggml-quants.c does, so that what was dequantised becomes the same bytes again.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "witan/base/numbers/half.h"
#include "witan/convert/elements/block_codec.h"

namespace witan {
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
