#include <gtest/gtest.h>

#include <cmath>

#include "witan/base/numbers/half.h"
#include "witan/convert/elements/elements.h"
#include "witan/convert/elements/scaled_formats.h"

namespace witan {
namespace {

std::array<float, kMxGroup> back(const MxGroup& group) {
  std::array<float, kMxGroup> values;
  group.dequantise(values.data());
  return values;
}

TEST(Mxfp4, HasTwoValuesPerByteAndAScaleFor32) {
  std::vector<std::byte> blocks;
  for (int i = 0; i < 32; ++i) blocks.push_back(static_cast<std::byte>((i % 16) | ((15 - i % 16) << 4)));
  const std::vector<std::byte> scales = {std::byte{127}, std::byte{129}};
  const auto narrow = dequantise_mxfp4(blocks, scales);
  std::vector<float> found(narrow.size() / 2);
  copy_elements(Element::f32, reinterpret_cast<std::byte*>(found.data()), Element::bf16, narrow.data(), 1, 64);
  const double table[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
  ASSERT_EQ(found.size(), 64U);
  for (size_t i = 0; i < found.size(); ++i) {
    const size_t byte = i / 2, code = i % 2 == 0 ? byte % 16 : 15 - byte % 16;
    EXPECT_EQ(static_cast<double>(found[i]), table[code] * (i < 32 ? 1 : 4)) << i;
  }
}

TEST(Mxfp4, RoundsToNearestAndTiesToEven) {
  std::array<float, kMxGroup> values{};
  const std::array<float, 12> given = {6, 0.25F, 0.26F, 0.75F, 1.25F, 1.75F, 2.5F, 2.6F, 3.5F, -5, -0.0F, -6};
  const std::array<float, 12> expected = {6, 0, 0.5F, 1, 1, 2, 2, 3, 4, -4, -0.0F, -6};
  std::copy(given.begin(), given.end(), values.begin());
  const MxGroup group = quantise_mxfp4(values.data());
  EXPECT_EQ(group.scale, 127);
  const auto found = back(group);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(found[i], expected[i]) << i;
    EXPECT_EQ(std::signbit(found[i]), std::signbit(expected[i])) << i;
  }
}

// With the exponent of the largest value, 7.9 would be clipped to 6.
TEST(Mxfp4, UsesALargerScaleIfItIsCloser) {
  std::array<float, kMxGroup> values{};
  values[3] = 7.9F;
  EXPECT_EQ(back(quantise_mxfp4(values.data()))[3], 8);
}

TEST(Mxfp4, EveryGroupRoundTripsThroughItsValues) {
  for (int scale = 0; scale < 252; ++scale)  // float32 cannot hold values of larger scales
    for (int first = 0; first < 16; ++first) {
      MxGroup group;
      group.scale = static_cast<uint8_t>(scale);
      for (size_t i = 0; i < group.codes.size(); ++i)
        group.codes[i] = static_cast<uint8_t>((first + static_cast<int>(i * i)) % 16);
      const auto values = back(group), again = back(quantise_mxfp4(values.data()));
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(again[i], values[i]) << scale << ' ' << first << ' ' << i;
        ASSERT_EQ(std::signbit(again[i]), std::signbit(values[i]));
      }
    }
}

}  // namespace
}  // namespace witan
