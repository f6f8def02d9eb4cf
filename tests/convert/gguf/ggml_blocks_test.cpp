#include "witan/convert/gguf/ggml_blocks.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "witan/base/half.h"

namespace witan {
namespace {

std::vector<float> read(Element type, const std::vector<std::byte>& blocks, int64_t first, int64_t stride,
                        int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  copy_from_blocks(Element::f32, reinterpret_cast<std::byte*>(out.data()), type, blocks.data(), first, stride, count);
  return out;
}

// gguf.quants.quantize([i * 0.37 - 5 for i in 0 … 31], Q8_0) of gguf 0.19 for Python.
TEST(GgmlBlocks, Q8IsThePythonPackages) {
  static constexpr std::array<int, 34> kExpected = {133, 42,  158, 165, 172, 180, 187, 194, 201, 209, 216, 223,
                                                    230, 238, 245, 252, 4,   11,  18,  25,  33,  40,  47,  54,
                                                    62,  69,  76,  83,  91,  98,  105, 112, 120, 127};
  std::vector<float> values;
  for (int i = 0; i < 32; ++i) values.push_back(static_cast<float>(i) * 0.37F - 5.0F);
  std::vector<std::byte> blocks(34);
  quantise_q8_0(values, blocks.data());
  for (size_t i = 0; i < blocks.size(); ++i) EXPECT_EQ(static_cast<int>(blocks[i]), kExpected[i]) << i;
}

TEST(GgmlBlocks, Q8IsTheScaleTimesTheNumberWhereverItStands) {
  std::vector<std::byte> blocks;
  for (const float step : {0.5F, -0.25F}) {
    const f16 scale(step);
    blocks.push_back(static_cast<std::byte>(scale.bits & 255));
    blocks.push_back(static_cast<std::byte>(scale.bits >> 8));
    for (int i = 0; i < 32; ++i) blocks.push_back(static_cast<std::byte>(static_cast<int8_t>(i * 8 - 128)));
  }
  const auto whole = read(Element::q8_0, blocks, 0, 1, 64);
  for (size_t i = 0; i < 64; ++i)
    EXPECT_EQ(whole[i], (i < 32 ? 0.5F : -0.25F) * (static_cast<float>(i % 32) * 8 - 128)) << i;
  const auto some = read(Element::q8_0, blocks, 3, 7, 8);
  for (size_t i = 0; i < some.size(); ++i) EXPECT_EQ(some[i], whole[3 + 7 * i]);
}

TEST(GgmlBlocks, QuantisedAgainQ8IsTheSame) {
  std::vector<float> values(64 * 32);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(static_cast<float>(i) * 1.7F) * std::exp(static_cast<float>(i % 97) * 0.1F - 5);
  for (size_t i = 0; i < 32; ++i) values[i] = 0;
  std::vector<std::byte> first(64 * 34), second(first.size());
  quantise_q8_0(values, first.data());
  quantise_q8_0(read(Element::q8_0, first, 0, 1, 64 * 32), second.data());
  EXPECT_EQ(first, second);
}

// Element j of a block is in the lower half of byte j, element j + 16 in its upper half.
TEST(GgmlBlocks, Mxfp4HasHalvesOfABlockInHalvesOfBytes) {
  std::vector<std::byte> blocks = {std::byte{128}};  // 2^1
  for (int j = 0; j < 16; ++j) blocks.push_back(static_cast<std::byte>(j | (15 - j) << 4));
  static constexpr std::array<float, 16> kValues{0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
  const auto whole = read(Element::mxfp4, blocks, 0, 1, 32);
  for (size_t j = 0; j < 16; ++j) {
    EXPECT_EQ(whole[j], 2 * kValues[j]);
    EXPECT_EQ(whole[16 + j], 2 * kValues[15 - j]);
  }
}

}  // namespace
}  // namespace witan
