#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "witan/convert/elements/scaled_formats.h"

namespace witan {
namespace {

std::vector<float> floats_of(const std::vector<std::byte>& narrow) {
  std::vector<float> values(narrow.size() / 2);
  copy_elements(Element::f32, reinterpret_cast<std::byte*>(values.data()), Element::bf16, narrow.data(), 1,
                static_cast<int64_t>(values.size()));
  return values;
}

// A 3 x 5 matrix in blocks of 2 has six scales.
TEST(Fp8Blocks, ApplyTheirScales) {
  // 0, 2^-9 (the smallest), 1, 1.125, 448 (the largest), and their negatives.
  const std::vector<unsigned> bits = {0x00, 0x01, 0x38, 0x39, 0x7E, 0x80, 0x81, 0xB8,
                                      0xB9, 0xFE, 0x38, 0x38, 0x38, 0x38, 0x38};
  const std::vector<double> plain = {0, 0x1p-9, 1, 1.125, 448, -0.0, -0x1p-9, -1, -1.125, -448, 1, 1, 1, 1, 1};
  std::vector<std::byte> values;
  for (const unsigned one : bits) values.push_back(static_cast<std::byte>(one));
  const std::vector<float> scales = {1, 2, 4, 0.5F, 8, 16};
  const auto found = floats_of(dequantise_fp8_blocks(values, Element::f32, std::as_bytes(std::span(scales)), 3, 5, 2));
  for (size_t i = 0; i < plain.size(); ++i)
    EXPECT_EQ(static_cast<double>(found[i]), plain[i] * static_cast<double>(scales[i / 10 * 3 + i % 5 / 2])) << i;
}

// The relative error is at most 2^-4 (half of the last of three fraction bits) for values not far below the largest.
TEST(Fp8Blocks, AreScaledByTheirLargestValue) {
  constexpr int64_t kRows = 7, kColumns = 10, kBlock = 4;
  std::mt19937 draw(3);
  std::uniform_real_distribution<float> uniform(0.1F, 1);
  std::vector<float> values(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t block = i / 10 / 4 * 3 + i % 10 / 4;
    values[i] = uniform(draw) * std::pow(10.0F, static_cast<float>(block)) * (i % 3 == 0 ? -1.0F : 1.0F);
  }
  for (int64_t row = 0; row < 4; ++row)
    for (int64_t column = 0; column < 4; ++column) values[static_cast<size_t>(row * kColumns + column)] = 0;
  ThreadPool pool(2);
  std::vector<std::byte> codes, scales;
  RoundingError error =
      quantise_fp8_blocks(std::span(values).first(4 * kColumns), kColumns, kBlock, pool, codes, scales);
  error += quantise_fp8_blocks(std::span(values).subspan(4 * kColumns), kColumns, kBlock, pool, codes, scales);
  ASSERT_EQ(codes.size(), values.size());
  ASSERT_EQ(scales.size(), 2 * 3 * sizeof(float));
  const auto found = floats_of(dequantise_fp8_blocks(codes, Element::f32, scales, kRows, kColumns, kBlock));
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_NEAR(found[i], values[i], (0x1p-4F + 0x1p-8F) * std::fabs(values[i])) << i;
  EXPECT_GT(error.relative(), 0.005);
  EXPECT_LT(error.relative(), 0x1p-4);
}

}  // namespace
}  // namespace witan
