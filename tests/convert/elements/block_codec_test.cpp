#include "witan/convert/elements/block_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/numbers/half.h"
#include "witan/formats/gguf.h"

namespace witan {
namespace {

constexpr Element kTypes[] = {Element::q5_0, Element::q8_0, Element::q4_k,
                              Element::q5_k, Element::q6_k, Element::mxfp4};

std::vector<float> read(Element type, const std::vector<std::byte>& blocks, int64_t first, int64_t stride,
                        int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  copy_from_blocks(Element::f32, reinterpret_cast<std::byte*>(out.data()), type, blocks.data(), first, stride, count);
  return out;
}

struct Quantised {
  std::vector<std::byte> blocks;
  std::vector<float> values;
  RoundingError error;
};

Quantised quantised(Element type, const std::vector<float>& values, int threads = 1) {
  const BlockCodec& codec = *block_codec(type);
  ThreadPool pool(threads);
  Quantised made;
  made.blocks.resize(values.size() / static_cast<size_t>(codec.block) * static_cast<size_t>(codec.bytes));
  made.error = quantise_blocks(codec, values, made.blocks.data(), pool);
  made.values = read(type, made.blocks, 0, 1, static_cast<int64_t>(values.size()));
  return made;
}

std::vector<float> normal_values(size_t count, float scale, float mean = 0) {
  std::mt19937 draw(5);
  std::normal_distribution<float> normal(mean, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(draw);
  return values;
}

class GgmlBlocks : public ::testing::TestWithParam<Element> {
 protected:
  const BlockCodec& codec() const { return *block_codec(GetParam()); }
};

TEST_P(GgmlBlocks, HaveTheSizesOfTheType) {
  const GgmlType* type = ggml_type(name_of(GetParam()));
  ASSERT_NE(type, nullptr);
  EXPECT_EQ(codec().block, type->block);
  EXPECT_EQ(codec().bytes, type->bytes);
  EXPECT_LE(codec().block, kLargestBlock);
}

// Expected values: tests/golden/gguf/make_blocks.py.
TEST_P(GgmlBlocks, MatchThePythonPackage) {
  const std::string golden = cat(WITAN_SOURCE_DIR, "/tests/golden/gguf/blocks/", name_of(GetParam()));
  const std::string blocks = read_file(golden + ".blocks"), floats = read_file(golden + ".f32");
  std::vector<std::byte> bytes(blocks.size());
  std::memcpy(bytes.data(), blocks.data(), blocks.size());
  std::vector<float> expected(floats.size() / sizeof(float));
  std::memcpy(expected.data(), floats.data(), floats.size());
  ASSERT_GT(expected.size(), 0U);
  EXPECT_EQ(read(GetParam(), bytes, 0, 1, static_cast<int64_t>(expected.size())), expected);
  const auto some = read(GetParam(), bytes, 3, 7, 20);
  for (size_t i = 0; i < some.size(); ++i) EXPECT_EQ(some[i], expected[3 + 7 * i]);
}

// Bounds on the relative error for normal values, a fifth above the observed ones; llama.cpp's own quantisers have
// 0.043 (Q5_0), 0.0054, 0.0715, 0.0362, 0.0178 and 0.114.
TEST_P(GgmlBlocks, NormalValuesHaveTheErrorOfTheirBits) {
  const std::map<Element, double> bounds = {{Element::q5_0, 0.049}, {Element::q8_0, 0.0065}, {Element::q4_k, 0.085},
                                            {Element::q5_k, 0.042}, {Element::q6_k, 0.021},  {Element::mxfp4, 0.134}};
  for (const float scale : {0.02F, 3.0F}) {
    const std::vector<float> values = normal_values(64 * 256, scale);
    const Quantised made = quantised(GetParam(), values);
    RoundingError error;
    error.add(values, made.values);
    EXPECT_NEAR(made.error.relative(), error.relative(), 1e-9);
    EXPECT_LT(error.relative(), bounds.at(GetParam()));
    EXPECT_GT(error.relative(), bounds.at(GetParam()) / 2);
  }
}

TEST_P(GgmlBlocks, AreIndependentOfThreads) {
  const std::vector<float> values = normal_values(200 * 256, 0.1F);
  const Quantised one = quantised(GetParam(), values, 1), three = quantised(GetParam(), values, 3);
  EXPECT_EQ(one.blocks, three.blocks);
  EXPECT_EQ(one.error.squared_error, three.error.squared_error);
}

// Zeros, equal values of either sign, a single nonzero value, the largest and the smallest: none becomes NaN or grows
// by more than the coarsest step.
TEST_P(GgmlBlocks, HandleSpecialValues) {
  std::vector<float> values(8 * 256, 0.0F);
  const auto fill = [&](size_t block, float value) { std::fill_n(values.begin() + block * 256, 256, value); };
  fill(1, 0.5F);
  fill(2, -0.5F);
  values[3 * 256 + 17] = 1;
  fill(4, 65504);
  fill(5, -65504);
  fill(6, 1e-30F);
  values[7 * 256] = -1e-3F;
  const Quantised made = quantised(GetParam(), values);
  for (size_t i = 0; i < values.size(); ++i) {
    float largest = 0;  // for any block size
    for (size_t k = i / 256 * 256; k < (i / 256 + 1) * 256; ++k) largest = std::max(largest, std::fabs(values[k]));
    ASSERT_TRUE(std::isfinite(made.values[i])) << i;
    ASSERT_NEAR(made.values[i], values[i], 0.35F * std::fabs(values[i]) + 0.01F * largest + 1e-29F) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GgmlBlocks, ::testing::ValuesIn(kTypes),
                         [](const auto& type) { return std::string(name_of(type.param)); });

// Expected: gguf.quants.quantize([i * 0.37 - 5 for i in 0 … 31], Q8_0) of gguf 0.19 for Python.
TEST(Q8Blocks, MatchThePythonPackage) {
  static constexpr std::array<int, 34> kExpected = {133, 42,  158, 165, 172, 180, 187, 194, 201, 209, 216, 223,
                                                    230, 238, 245, 252, 4,   11,  18,  25,  33,  40,  47,  54,
                                                    62,  69,  76,  83,  91,  98,  105, 112, 120, 127};
  std::vector<float> values;
  for (int i = 0; i < 32; ++i) values.push_back(static_cast<float>(i) * 0.37F - 5.0F);
  const auto blocks = quantised(Element::q8_0, values).blocks;
  for (size_t i = 0; i < blocks.size(); ++i) EXPECT_EQ(static_cast<int>(blocks[i]), kExpected[i]) << i;
}

TEST(Q8Blocks, RequantisingChangesNothing) {
  std::vector<float> values(64 * 32);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(static_cast<float>(i) * 1.7F) * std::exp(static_cast<float>(i % 97) * 0.1F - 5);
  for (size_t i = 0; i < 32; ++i) values[i] = 0;
  const Quantised first = quantised(Element::q8_0, values);
  EXPECT_EQ(quantised(Element::q8_0, first.values).blocks, first.blocks);
}

TEST(Mxfp4Blocks, RequantisingKeepsTheValues) {
  const Quantised first = quantised(Element::mxfp4, normal_values(64 * 32, 0.3F));
  EXPECT_EQ(quantised(Element::mxfp4, first.values).values, first.values);
}

// Types with a minimum hold values on one side of 0 as accurately as others.
TEST(KBlocks, HoldValuesFarFromZero) {
  const std::vector<float> values = normal_values(16 * 256, 0.1F, -1.0F);
  EXPECT_LT(quantised(Element::q4_k, values).error.relative(), 0.01);
}

}  // namespace
}  // namespace witan
