#include "witan/convert/elements/scaled_formats.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "witan/base/numbers/float4.h"
#include "witan/base/numbers/half.h"
#include "witan/convert/elements/block_codec.h"

namespace witan {
namespace {

constexpr int kBias = 127, kLargestExponent = 2;  // the exponent of 6
constexpr size_t kPairs = kMxGroup / 2, kGroupsOfTask = 512;

double step_of(int scale) {
  return std::ldexp(1.0, scale - kBias);
}

double squared_error(const float* values, const MxGroup& group) {
  std::array<float, kMxGroup> rounded;
  group.dequantise(rounded.data());
  double sum = 0;
  for (size_t i = 0; i < kMxGroup; ++i) {
    const double error = static_cast<double>(rounded[i]) - static_cast<double>(values[i]);
    sum += error * error;
  }
  return sum;
}

}  // namespace

void MxGroup::dequantise(float* values) const {
  const double step = step_of(scale);
  for (size_t i = 0; i < codes.size(); ++i)
    values[i] = static_cast<float>(static_cast<double>(e2m1::kValues[codes[i] & 15U]) * step);
}

MxGroup quantise_mxfp4(const float* values) {
  float largest = 0;
  for (int i = 0; i < kMxGroup; ++i) largest = std::max(largest, std::fabs(values[i]));
  const int exponent = largest > 0 ? std::ilogb(largest) - kLargestExponent : -kBias;
  MxGroup best;
  double best_error = -1;
  for (const int more : {0, 1, -1}) {
    MxGroup group;
    group.scale = static_cast<uint8_t>(std::clamp(exponent + more + kBias, 0, 254));
    const double inverse = 1 / step_of(group.scale);
    for (size_t i = 0; i < group.codes.size(); ++i)
      group.codes[i] = e2m1(static_cast<double>(values[i]) * inverse).bits;
    const double error = squared_error(values, group);
    if (best_error >= 0 && error >= best_error) continue;
    best = group;
    best_error = error;
    if (error == 0) break;
  }
  return best;
}

std::vector<std::byte> dequantise_mxfp4(std::span<const std::byte> blocks, std::span<const std::byte> scales) {
  std::vector<std::byte> out(blocks.size() * 2 * sizeof(bf16));
  std::byte* to = out.data();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const double step = step_of(static_cast<int>(scales[i / kPairs]));
    const auto both = static_cast<unsigned>(blocks[i]);
    for (const unsigned bits : {both & 15U, both >> 4}) {
      const bf16 value(static_cast<float>(static_cast<double>(e2m1::kValues[bits]) * step));
      std::memcpy(to, &value, sizeof value);
      to += sizeof value;
    }
  }
  return out;
}

RoundingError quantise_mxfp4_pairs(std::span<const float> values, ThreadPool& pool, std::vector<std::byte>& blocks,
                                   std::vector<std::byte>& scales) {
  const size_t groups = values.size() / kMxGroup, blocks_before = blocks.size(), scales_before = scales.size();
  blocks.resize(blocks_before + groups * kPairs);
  scales.resize(scales_before + groups);
  std::vector<RoundingError> errors((groups + kGroupsOfTask - 1) / kGroupsOfTask);
  pool.run(static_cast<int64_t>(errors.size()), [&](int64_t task) {
    const auto first = static_cast<size_t>(task) * kGroupsOfTask;
    for (size_t i = first; i < std::min(groups, first + kGroupsOfTask); ++i) {
      const auto of = values.subspan(i * kMxGroup, kMxGroup);
      const MxGroup group = quantise_mxfp4(of.data());
      std::array<float, kMxGroup> rounded;
      group.dequantise(rounded.data());
      errors[static_cast<size_t>(task)].add(of, rounded);
      scales[scales_before + i] = static_cast<std::byte>(group.scale);
      for (size_t pair = 0; pair < kPairs; ++pair)
        blocks[blocks_before + i * kPairs + pair] =
            static_cast<std::byte>(group.codes[2 * pair] | group.codes[2 * pair + 1] << 4);
    }
  });
  RoundingError sum;
  for (const RoundingError& error : errors) sum += error;
  return sum;
}

// MXFP4 as ggml has it: the scale's exponent, then 16 bytes, element j in a lower half, j + 16 in an upper.
namespace ggml_mxfp4 {
namespace {

constexpr size_t kHalf = kMxGroup / 2;

void dequantise(const std::byte* from, float* values) {
  MxGroup group;
  group.scale = static_cast<uint8_t>(from[0]);
  for (size_t i = 0; i < kHalf; ++i) {
    const auto both = static_cast<uint8_t>(from[1 + i]);
    group.codes[i] = both & 15U;
    group.codes[i + kHalf] = both >> 4;
  }
  group.dequantise(values);
}

void quantise(const float* values, std::byte* to) {
  const MxGroup group = quantise_mxfp4(values);
  to[0] = static_cast<std::byte>(group.scale);
  for (size_t i = 0; i < kHalf; ++i) to[1 + i] = static_cast<std::byte>(group.codes[i] | group.codes[i + kHalf] << 4);
}

}  // namespace
}  // namespace ggml_mxfp4

constexpr BlockCodec kMxfp4Codec{Element::mxfp4, kMxGroup, 17, ggml_mxfp4::dequantise, ggml_mxfp4::quantise};

}  // namespace witan
