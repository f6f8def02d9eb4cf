#include "witan/convert/elements/elements.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

template <class To, class From>
std::vector<To> copied(Element to, Element from, const std::vector<From>& values, int64_t stride = 1) {
  const auto count = (static_cast<int64_t>(values.size()) + stride - 1) / stride;
  std::vector<To> out(static_cast<size_t>(count));
  copy_elements(to, reinterpret_cast<std::byte*>(out.data()), from, reinterpret_cast<const std::byte*>(values.data()),
                stride, count);
  return out;
}

// The value of a binary16 number by definition (IEEE 754, table 3.5).
double half_value(unsigned bits) {
  const double sign = (bits & 0x8000U) != 0 ? -1 : 1;
  const unsigned exponent = bits >> 10 & 31U, fraction = bits & 1023U;
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * fraction * std::pow(2.0, -24);
  return sign * (1 + fraction / 1024.0) * std::pow(2.0, static_cast<int>(exponent) - 15);
}

TEST(Elements, EveryHalfRoundTrips) {
  std::vector<uint16_t> all;
  for (unsigned bits = 0; bits < 65536; ++bits) all.push_back(static_cast<uint16_t>(bits));
  const auto values = copied<float>(Element::f32, Element::f16, all);
  const auto back = copied<uint16_t>(Element::f16, Element::f32, values);
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const double expected = half_value(bits);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(values[bits])) << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(values[bits]), expected) << bits;
    ASSERT_EQ(back[bits], all[bits]) << bits;
  }
}

TEST(Elements, HalvesAreRoundedToNearestEven) {
  const std::vector<double> values = {1 + 0x1p-11, 1 + 3 * 0x1p-11, 1 + 0x1.1p-11, 65519,
                                      65520,       0x1p-25,         0x1.1p-25,     0x1.ffcp-15};
  EXPECT_EQ((copied<uint16_t>(Element::f16, Element::f64, values)),
            (std::vector<uint16_t>{0x3C00, 0x3C02, 0x3C01, 0x7BFF, 0x7C00, 0, 1, 0x0400}));
}

TEST(Elements, SupportStrides) {
  const std::vector<float> values = {1, 2, 3, 4, 5};
  EXPECT_EQ((copied<float>(Element::f32, Element::f32, values, 2)), (std::vector<float>{1, 3, 5}));
  EXPECT_EQ((copied<double>(Element::f64, Element::f32, values, 2)), (std::vector<double>{1, 3, 5}));
}

TEST(Elements, BitsAreKeptWithinADtype) {
  const uint32_t signalling = 0x7FA00001;
  float value;
  std::memcpy(&value, &signalling, sizeof value);
  const auto copy = copied<float>(Element::f32, Element::f32, std::vector<float>{value});
  EXPECT_EQ(std::memcmp(copy.data(), &signalling, sizeof signalling), 0);
}

TEST(Elements, NanRemainsNan) {
  const std::vector<uint8_t> e4m3 = {0x7F, 0xFF, 0x7E}, e8m0 = {0xFF, 0xFE, 127};
  const auto float8 = copied<float>(Element::f32, Element::f8_e4m3, e4m3);
  EXPECT_TRUE(std::isnan(float8[0]) && std::isnan(float8[1]));
  EXPECT_EQ(float8[2], 448);
  const auto powers = copied<double>(Element::f64, Element::f8_e8m0, e8m0);
  EXPECT_TRUE(std::isnan(powers[0]));
  EXPECT_EQ(powers[1], 0x1p127);
  EXPECT_EQ(powers[2], 1);
}

TEST(Elements, WiderDtypesHoldNarrowerOnes) {
  EXPECT_TRUE(holds(Element::f32, Element::bf16) && holds(Element::f32, Element::f16));
  EXPECT_FALSE(holds(Element::bf16, Element::f16) || holds(Element::f16, Element::bf16) ||
               holds(Element::bf16, Element::f32) || holds(Element::f32, Element::f64));
}

TEST(Elements, RefuseOtherDtypes) {
  EXPECT_NE(test::message_of<CheckpointError>([] {
              element_from_name("I16", "file: \"x\"");
            }).find("file: \"x\": unsupported dtype I16"),
            std::string::npos);
}

TEST(Elements, CountNonFiniteValues) {
  const auto count = [](Element type, const auto& values) {
    return count_non_finite(type, std::as_bytes(std::span(values)));
  };
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(count(Element::f64, std::vector<double>{0, -0.0, 1e308, kInf, -kInf, kNan}), 3);
  std::vector<float> singles = {0, -1, 3e38F, 1e-45F, -static_cast<float>(kInf), static_cast<float>(kNan)};
  EXPECT_EQ(count(Element::f32, singles), 2);
  // The largest, infinity, NaN with either sign, and the smallest, for both 2-byte dtypes.
  EXPECT_EQ(count(Element::f16, std::vector<uint16_t>{0x7BFF, 0x7C00, 0xFC01, 0x7FFF, 0x0001}), 3);
  EXPECT_EQ(count(Element::bf16, std::vector<uint16_t>{0x7F7F, 0x7F80, 0xFF81, 0x7FFF, 0x0001}), 3);
  // The value is between other elements and unaligned.
  const auto bytes = std::as_bytes(std::span(singles));
  std::vector<std::byte> moved(bytes.size() + 1);
  std::memcpy(moved.data() + 1, bytes.data(), bytes.size());
  EXPECT_EQ(count_non_finite(Element::f32, std::span(moved).subspan(1)), 2);
  EXPECT_EQ(count_non_finite(Element::f32, {}), 0);
}

}  // namespace
}  // namespace witan
