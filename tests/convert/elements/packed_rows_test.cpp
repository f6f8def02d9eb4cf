#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "convert/convert_support.h"
#include "witan/convert/elements/scaled_formats.h"

namespace witan {
namespace {

using testing::OwnTensors;
using testing::tensors_in;

// Expected values: tests/golden/convert_quantised/make_packed.py.
class PackedRows : public ::testing::TestWithParam<const char*> {};

TEST_P(PackedRows, MatchCompressedTensors) {
  const OwnTensors all = tensors_in(fs::path(WITAN_SOURCE_DIR) / "tests/golden/convert_quantised/packed.safetensors");
  const auto part = [&](const char* name) { return all.at(std::string(GetParam()) + "." + name); };
  const auto packed = part("weight_packed"), scales = part("weight_scale"), values = part("values");
  const Shape& shape = values.info.shape;
  const int bits = std::string(GetParam()).starts_with("int4") ? 4 : 8;
  ASSERT_EQ(packed.info.shape, Shape({shape[0], packed_words(shape[1], bits)}));
  const auto found = dequantise_packed(packed.bytes, element_from_name(scales.info.dtype, "golden"), scales.bytes,
                                       shape[0], shape[1], scales.info.shape[1], bits);
  EXPECT_EQ(found, values.bytes);
}

INSTANTIATE_TEST_SUITE_P(Golden, PackedRows,
                         ::testing::Values("int4_bf16", "int4_f32", "int4_ragged", "int8_f16", "int8_bf16"),
                         [](const auto& name) { return std::string(name.param); });

struct Case {
  int bits;
  int64_t columns, groups;
  double bound;  // of the relative error, a fifth above the observed one
};

TEST(PackedRows, HaveTheErrorOfTheirBits) {
  constexpr int64_t kRows = 37;
  for (const auto& [bits, columns, groups, bound] :
       {Case{4, 256, 2, 0.125}, Case{4, 96, 3, 0.11}, Case{8, 83, 1, 0.0085}}) {
    std::mt19937 draw(9);
    std::normal_distribution<float> normal(0, 0.05F);
    std::vector<float> values(static_cast<size_t>(kRows * columns));
    for (float& value : values) value = normal(draw);
    std::fill_n(values.begin(), columns, 0.0F);
    ThreadPool one(1), three(3);
    std::vector<std::byte> words, scales, again, scales_again;
    const RoundingError error = quantise_packed(values, columns, groups, bits, Element::f32, one, words, scales);
    quantise_packed(values, columns, groups, bits, Element::f32, three, again, scales_again);
    EXPECT_EQ(words, again);
    EXPECT_EQ(scales, scales_again);
    EXPECT_LT(error.relative(), bound);
    EXPECT_GT(error.relative(), bound / 2);
    const auto bytes = dequantise_packed(words, Element::f32, scales, kRows, columns, groups, bits);
    std::vector<float> found(values.size());
    std::memcpy(found.data(), bytes.data(), bytes.size());
    RoundingError seen;
    seen.add(values, found);
    EXPECT_NEAR(seen.relative(), error.relative(), 1e-9);
    // Requantising dequantised values gives nearly the same values, since scales are searched again.
    std::vector<std::byte> second, second_scales;
    EXPECT_LT(quantise_packed(found, columns, groups, bits, Element::f32, one, second, second_scales).relative(),
              bound / 2);
  }
}

}  // namespace
}  // namespace witan
