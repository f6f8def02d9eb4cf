#include "witan/convert/gguf/ggml_blocks.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstring>

#include "witan/base/half.h"

namespace witan {
namespace {

constexpr int64_t kBlock = 32;
constexpr int64_t kQ8Bytes = 34;   // the scale in float16, then 32 whole numbers
constexpr int64_t kMx4Bytes = 17;  // the scale's exponent, then 16 bytes: element j in a lower half, j + 16 in an upper
constexpr int64_t kStretch = 1024;

float q8_value(const std::byte* blocks, int64_t i) {
  const std::byte* block = blocks + i / kBlock * kQ8Bytes;
  f16 scale;
  std::memcpy(&scale, block, sizeof scale);
  const auto number = static_cast<int8_t>(block[sizeof scale + static_cast<size_t>(i % kBlock)]);
  return static_cast<float>(scale) * static_cast<float>(number);
}

float mx4_value(const std::byte* blocks, int64_t i) {
  static constexpr std::array<float, 16> kE2M1{0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                               -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
  const std::byte* block = blocks + i / kBlock * kMx4Bytes;
  const int64_t in_block = i % kBlock;
  const auto both = static_cast<unsigned>(block[1 + static_cast<size_t>(in_block % 16)]);
  return std::ldexp(kE2M1[in_block < 16 ? both & 15U : both >> 4], static_cast<int>(block[0]) - 127);
}

}  // namespace

bool stands_in_blocks(Element element) {
  return element == Element::q8_0 || element == Element::mxfp4;
}

void copy_from_blocks(Element to_type, std::byte* to, Element from_type, const std::byte* blocks, int64_t first,
                      int64_t stride, int64_t count) {
  assert(stands_in_blocks(from_type));
  std::array<float, kStretch> values;
  for (int64_t done = 0; done < count; done += kStretch) {
    const int64_t now = std::min(kStretch, count - done);
    for (int64_t i = 0; i < now; ++i) {
      const int64_t at = first + (done + i) * stride;
      values[static_cast<size_t>(i)] = from_type == Element::q8_0 ? q8_value(blocks, at) : mx4_value(blocks, at);
    }
    copy_elements(to_type, to + done * size_of(to_type), Element::f32,
                  reinterpret_cast<const std::byte*>(values.data()), 1, now);
  }
}

void quantise_q8_0(std::span<const float> values, std::byte* out) {
  assert(values.size() % kBlock == 0);
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const auto block = values.subspan(begin, kBlock);
    float largest = 0;
    for (const float value : block) largest = std::max(largest, std::fabs(value));
    const float step = largest / 127, inverse = step != 0 ? 1 / step : 0;
    const f16 scale(step);
    std::memcpy(out, &scale, sizeof scale);
    for (size_t i = 0; i < block.size(); ++i)
      out[sizeof scale + i] = static_cast<std::byte>(static_cast<int8_t>(std::round(block[i] * inverse)));
    out += kQ8Bytes;
  }
}

}  // namespace witan
