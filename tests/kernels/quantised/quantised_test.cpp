#include "witan/kernels/quantised/quantised.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "support/rank.h"
#include "witan/base/numbers/float8.h"

namespace witan {
namespace {

using kernels::Codes;
using kernels::traits_of;
using kernels::WeightFormat;
using kernels::WeightFormatTraits;
using testing::Rank;

constexpr WeightFormat kFormats[] = {WeightFormat::nf4, WeightFormat::mxfp4, WeightFormat::int4, WeightFormat::fp8};
constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

// The table of bitsandbytes (csrc/kernels.cu, nf4_dequantization_lut).
constexpr double kNormalFloats[] = {-1.0,
                                    -0.6961928009986877,
                                    -0.5250730514526367,
                                    -0.39491748809814453,
                                    -0.28444138169288635,
                                    -0.18477343022823334,
                                    -0.09105003625154495,
                                    0.0,
                                    0.07958029955625534,
                                    0.16093020141124725,
                                    0.24611230194568634,
                                    0.33791524171829224,
                                    0.44070982933044434,
                                    0.5626170039176941,
                                    0.7229568362236023,
                                    1.0};

// Returns the number that a code stands for before it is scaled; mxfp4 as in table 5 of the OCP specification.
double number_of(WeightFormat format, uint32_t code) {
  constexpr double kFloat4[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  switch (format) {
    case WeightFormat::nf4:
      return kNormalFloats[code];
    case WeightFormat::mxfp4:
      return std::copysign(kFloat4[code & 7], code < 8 ? 1.0 : -1.0);
    case WeightFormat::int4:
      return code;
    default:
      return static_cast<double>(float(std::bit_cast<e4m3>(static_cast<uint8_t>(code))));
  }
}

// Codes and scales in host memory.
struct HostCodes {
  WeightFormat format;
  std::vector<uint32_t> words;
  std::vector<float> scales;

  HostCodes(WeightFormat of, int64_t elements)
      : format(of),
        words(static_cast<size_t>(traits_of(of).words(elements))),
        scales(static_cast<size_t>(traits_of(of).numbers(elements))) {}

  const WeightFormatTraits& traits() const { return traits_of(format); }
  size_t elements() const { return words.size() * static_cast<size_t>(traits().codes_per_word()); }
  uint32_t code(size_t i) const {
    const auto per_word = static_cast<size_t>(traits().codes_per_word()), bits = static_cast<size_t>(traits().bits);
    return words[i / per_word] >> (i % per_word * bits) & ((1U << bits) - 1);
  }
  void set_code(size_t i, uint32_t code) {
    const auto per_word = static_cast<size_t>(traits().codes_per_word()), bits = static_cast<size_t>(traits().bits);
    words[i / per_word] |= code << (i % per_word * bits);
  }
  const float* scale(size_t i) const {
    return scales.data() + i / static_cast<size_t>(traits().group) * static_cast<size_t>(traits().scales);
  }
  // The value of a code of element i's group, in float32's range but not rounded.
  double exact(size_t i, uint32_t code) const {
    const float* const by = scale(i);
    const double product = number_of(format, code) * static_cast<double>(by[0]);
    return format == WeightFormat::int4 ? product + static_cast<double>(by[1]) : product;
  }
  std::vector<float> decoded() const {
    std::vector<float> out(elements());
    kernels::decode_weights_on_host(format, words, scales, out);
    return out;
  }
};

HostCodes encoded(WeightFormat format, const std::vector<double>& values) {
  HostCodes codes(format, std::ssize(values));
  kernels::encode_weights(format, values, codes.words, codes.scales);
  return codes;
}

HostCodes encoded(WeightFormat format, const std::vector<float>& values) {
  return encoded(format, std::vector<double>(values.begin(), values.end()));
}

std::vector<double> normal_values(int64_t count, double deviation, std::string_view name) {
  Rank rank;
  return testing::values(rank.normal({count}, DType::f32, name, deviation));
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Codes on(Rank& rank, const HostCodes& host) {
  Codes codes{host.format, rank.stream.empty({std::ssize(host.words)}, DType::i32),
              rank.stream.empty({std::ssize(host.scales)}, host.traits().scale)};
  std::memcpy(codes.words.raw(), host.words.data(), host.words.size() * sizeof(uint32_t));
  dispatch_floating(codes.scales.dtype(), [&]<class S>() {
    for (size_t i = 0; i < host.scales.size(); ++i) codes.scales.data<S>()[i] = S(host.scales[i]);
  });
  return codes;
}

// Every code with every scale, a group or two for each scale.
HostCodes all_codes(WeightFormat format) {
  std::vector<float> scales{0x1p-127F, 0x1p-30F, 0x1p-7F, 1, 0x1p10F, 0x1p120F, 0};
  if (format != WeightFormat::mxfp4) scales.insert(scales.end(), {0x1p-149F, 1e-44F, 0.0173F, 0.3F, 17.1F, 1e30F});
  const WeightFormatTraits& traits = traits_of(format);
  const int64_t of_scale = std::max<int64_t>(traits.group, 256);
  HostCodes codes(format, of_scale * std::ssize(scales));
  for (size_t i = 0; i < codes.elements(); ++i) {
    const float scale = scales[i / static_cast<size_t>(of_scale)];
    float* const to = const_cast<float*>(codes.scale(i));
    to[0] = scale;
    if (format == WeightFormat::int4) to[1] = -5 * scale;
    codes.set_code(i, static_cast<uint32_t>(i) % (1U << traits.bits));
  }
  return codes;
}

TEST(Quantised, CountsWordsScalesAndBytes) {
  constexpr int64_t n = 1 << 20;
  constexpr double kBits[] = {4.5, 4.5, 4.5, 8.25};
  for (size_t i = 0; i < std::size(kFormats); ++i) {
    const WeightFormatTraits& traits = traits_of(kFormats[i]);
    EXPECT_EQ(static_cast<double>(traits.bytes(n)) * 8 / n, kBits[i]) << traits.name;
    EXPECT_EQ(traits.words(n) * traits.codes_per_word(), n);
  }
  EXPECT_EQ(name_of(WeightFormat::mxfp4), "mxfp4");
  EXPECT_FALSE(Codes().defined());
}

TEST(Quantised, DecodesEveryCodeWithEveryScale) {
  for (const WeightFormat format : kFormats) {
    Rank rank;
    const HostCodes host = all_codes(format);
    const Codes codes = on(rank, host);
    const std::vector<float> decoded = host.decoded();
    for (const DType dtype : kDTypes) {
      const Tensor out = rank.poisoned({codes.elements()}, dtype);
      kernels::decode_weights(rank.stream, codes, out);
      dispatch_floating(dtype, [&]<class T>() {
        for (size_t i = 0; i < host.elements(); ++i) {
          const auto number = static_cast<float>(host.exact(i, host.code(i)));
          const T expected(number), found = out.data<T>()[i];
          if (std::isnan(number)) {
            EXPECT_TRUE(std::isnan(static_cast<double>(found)));
            continue;
          }
          ASSERT_EQ(static_cast<double>(found), static_cast<double>(expected)) << name_of(format) << dtype << i;
          ASSERT_EQ(std::signbit(static_cast<double>(found)), std::signbit(number)) << name_of(format) << dtype << i;
          ASSERT_EQ(decoded[i], number) << name_of(format) << i;
        }
      });
    }
  }
}

TEST(Quantised, DecodesPartsByThemselvesOnAnyNumberOfThreads) {
  for (const WeightFormat format : kFormats) {
    const WeightFormatTraits& traits = traits_of(format);
    constexpr int64_t kGroups = 700;
    const std::vector<double> values = normal_values(kGroups * traits.group, 0.02, "parts");
    const HostCodes whole = encoded(format, values);
    Rank one(1), three(3);
    const Tensor expected = one.poisoned({kGroups * traits.group}, DType::bf16);
    kernels::decode_weights(one.stream, on(one, whole), expected);
    const Codes codes = on(three, whole);
    for (const auto& [first, groups] : {std::pair<int64_t, int64_t>{0, kGroups}, {0, 1}, {3, 297}, {699, 1}, {5, 0}}) {
      const int64_t begin = first * traits.group, size = groups * traits.group;
      const Codes part{format, codes.words.narrow(0, traits.words(begin), traits.words(size)),
                       codes.scales.narrow(0, traits.numbers(begin), traits.numbers(size))};
      const Tensor out = three.poisoned({size}, DType::bf16);
      kernels::decode_weights(three.stream, part, out);
      EXPECT_TRUE(testing::close(out, expected.narrow(0, begin, size), 0, 0)) << traits.name << groups;
      const HostCodes alone =
          encoded(format, std::vector<double>(values.begin() + begin, values.begin() + begin + size));
      EXPECT_TRUE(std::equal(alone.words.begin(), alone.words.end(), whole.words.begin() + traits.words(begin)));
      EXPECT_TRUE(std::equal(alone.scales.begin(), alone.scales.end(), whole.scales.begin() + traits.numbers(begin)));
    }
  }
}

TEST(Quantised, EncodesToTheNearestCode) {
  for (const WeightFormat format : kFormats)
    for (const double deviation : {1e-42, 1e-20, 0.02, 1e30}) {
      const std::vector<double> values = normal_values(1 << 12, deviation, "nearest");
      const HostCodes codes = encoded(format, values);
      for (size_t i = 0; i < values.size(); ++i) {
        const double error = std::abs(codes.exact(i, codes.code(i)) - values[i]);
        for (uint32_t other = 0; other < 1U << codes.traits().bits; ++other)
          ASSERT_FALSE(std::abs(codes.exact(i, other) - values[i]) < error)
              << name_of(format) << " " << deviation << ": " << values[i] << " as " << codes.code(i);
      }
    }
}

TEST(Quantised, EncodesMiddlesToTheEvenCode) {
  for (const WeightFormat format : kFormats) {
    const uint32_t last = format == WeightFormat::mxfp4 ? 7 : format == WeightFormat::fp8 ? 0x7E : 15;
    const double scale = format == WeightFormat::mxfp4  ? 0x1p-10
                         : format == WeightFormat::int4 ? 0x1.2345p-10
                                                        : 0x1.234566p-10;
    // int4 and fp8 divide by the scale: the quotient of a float32 near a middle differs from the middle.
    const bool divides = format == WeightFormat::int4 || format == WeightFormat::fp8;
    const auto next = [&](double value, double to) {
      return divides ? static_cast<double>(std::nextafter(static_cast<float>(value), static_cast<float>(to)))
                     : std::nextafter(value, to);
    };
    for (uint32_t low = 0; low < last; ++low) {
      const double middle = (number_of(format, low) + number_of(format, low + 1)) / 2 * scale;
      std::vector<double> values(static_cast<size_t>(traits_of(format).group));
      values[0] = number_of(format, last) * scale;
      values[1] = middle;
      values[2] = next(middle, -1);
      values[3] = next(middle, 1);
      values[4] = static_cast<double>(static_cast<float>(middle));
      const HostCodes codes = encoded(format, values);
      ASSERT_EQ(static_cast<double>(codes.scales[0]), scale) << name_of(format);
      EXPECT_EQ(codes.code(0), last) << name_of(format);
      EXPECT_EQ(codes.code(1), low + low % 2) << name_of(format) << low;
      EXPECT_EQ(codes.code(2), low) << name_of(format) << low;
      EXPECT_EQ(codes.code(3), low + 1) << name_of(format) << low;
      const uint32_t nearest = values[4] == middle ? low + low % 2 : values[4] < middle ? low : low + 1;
      EXPECT_EQ(codes.code(4), nearest) << name_of(format) << low;
    }
  }
}

// The middles that bitsandbytes compares with (csrc/kernels.cu, dQuantizeNF4).
TEST(Quantised, EncodesNormalFloatsAsBitsandbytesDoes) {
  constexpr double kMiddles[] = {
      -0.8480964004993439,  -0.6106329262256622,   -0.4599952697753906, -0.33967943489551544, -0.23460740596055984,
      -0.13791173323988914, -0.045525018125772476, 0.03979014977812767, 0.1202552504837513,   0.2035212516784668,
      0.2920137718319893,   0.3893125355243683,    0.5016634166240692,  0.6427869200706482,   0.8614784181118011};
  std::vector<double> values(64);
  values[63] = 1;
  for (size_t i = 0; i < std::size(kMiddles); ++i) {
    values[2 * i] = kMiddles[i] - 1e-7;
    values[2 * i + 1] = kMiddles[i] + 1e-7;
  }
  const HostCodes codes = encoded(WeightFormat::nf4, values);
  for (uint32_t i = 0; i < std::size(kMiddles); ++i) {
    EXPECT_EQ(codes.code(2 * i), i);
    EXPECT_EQ(codes.code(2 * i + 1), i + 1);
  }
}

TEST(Quantised, EncodesTheScaleThatTheFormatPrescribes) {
  std::vector<double> values(128);
  values[9] = -0.75;
  values[40] = 0.3;
  values[70] = 2;
  values[100] = -1;
  EXPECT_EQ(encoded(WeightFormat::nf4, values).scales, (std::vector<float>{0.75F, 2}));
  EXPECT_EQ(encoded(WeightFormat::mxfp4, values).scales, (std::vector<float>{0x1p-3F, 0x1p-4F, 0x1p-1F, 0x1p-2F}));
  EXPECT_EQ(encoded(WeightFormat::fp8, values).scales, std::vector<float>{2.0F / 448});
  const HostCodes integers = encoded(WeightFormat::int4, values);
  EXPECT_NEAR(integers.scales[0], 0.2F, 1e-6F);
  EXPECT_EQ(integers.scales[1], -5 * integers.scales[0]);
}

TEST(Quantised, EncodesWhatWasDecodedWithoutADifference) {
  for (const WeightFormat format : {WeightFormat::nf4, WeightFormat::mxfp4})
    for (const double deviation : {1e-30, 0.02, 1e30}) {
      const HostCodes first = encoded(format, normal_values(1 << 14, deviation, "again"));
      const HostCodes second = encoded(format, first.decoded());
      EXPECT_EQ(second.words, first.words) << name_of(format) << deviation;
      EXPECT_EQ(second.scales, first.scales) << name_of(format) << deviation;
      EXPECT_TRUE(same_bits(second.decoded(), first.decoded())) << name_of(format) << deviation;
    }
}

// Files may have scales that this encoder would not choose, with which no code is large.
TEST(Quantised, EncodesTheValuesOfAnyMxfp4CodesWithoutADifference) {
  HostCodes codes(WeightFormat::mxfp4, 1 << 14);
  const Philox rng(3, 4);
  for (size_t i = 0; i < codes.elements(); ++i) {
    const size_t group = i / 32, most = 1 + group % 7;
    codes.scales[group] = std::ldexp(1.0F, static_cast<int>(group % 240) - 127);
    const auto magnitude = static_cast<uint32_t>(rng.uniform(2 * i) * static_cast<double>(most + 1));
    codes.set_code(i, magnitude | (rng.uniform(2 * i + 1) < 0.5 ? 8U : 0U));
  }
  EXPECT_TRUE(same_bits(encoded(WeightFormat::mxfp4, codes.decoded()).decoded(), codes.decoded()));
}

TEST(Quantised, BoundsTheErrorOfAValue) {
  for (const WeightFormat format : kFormats) {
    const std::vector<double> values = normal_values(1 << 15, 0.02, "errors");
    const HostCodes codes = encoded(format, values);
    const std::vector<float> decoded = codes.decoded();
    double squares = 0, of_values = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double error = std::abs(static_cast<double>(decoded[i]) - values[i]);
      const auto scale = static_cast<double>(*codes.scale(i));
      // Half of the widest gap between codes; for mxfp4 what is lost by values from 6 to 8; half a step of int4.
      const double bound = format == WeightFormat::nf4     ? 0.152 * scale
                           : format == WeightFormat::mxfp4 ? 2 * scale
                           : format == WeightFormat::int4  ? 0.5 * scale
                                                           : std::max(0x1p-4 * std::abs(values[i]), 0x1p-10 * scale);
      EXPECT_LE(error, bound * (1 + 1e-6)) << name_of(format) << values[i];
      squares += error * error;
      of_values += values[i] * values[i];
    }
    const double relative = std::sqrt(squares / of_values);
    EXPECT_LT(relative, format == WeightFormat::fp8 ? 0.027 : format == WeightFormat::mxfp4 ? 0.12 : 0.105);
  }
}

TEST(Quantised, KeepsZerosExactly) {
  for (const WeightFormat format : kFormats)
    for (const double shift : {0.0, 0.05, -0.05, 3e-45}) {
      std::vector<double> values = normal_values(1 << 12, shift == 3e-45 ? 1e-44 : 0.02, "zeros");
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = shift < 0 ? -std::abs(values[i]) + shift : shift > 0 ? std::abs(values[i]) + shift : values[i];
        if (i % 5 == 0) values[i] = 0;
      }
      const std::vector<float> decoded = encoded(format, values).decoded();
      for (size_t i = 0; i < values.size(); i += 5) ASSERT_EQ(decoded[i], 0) << name_of(format) << shift;
    }
}

TEST(Quantised, DecodesGroupsOfZerosAndOfVanishingValuesToZero) {
  for (const WeightFormat format : kFormats)
    for (const double value : {0.0, -0.0, 1e-300, -1e-300, std::numeric_limits<double>::denorm_min()})
      for (const float decoded : encoded(format, std::vector<double>(256, value)).decoded())
        ASSERT_EQ(decoded, 0) << name_of(format) << value;
}

TEST(Quantised, MarksGroupsThatAreNotFinite) {
  constexpr double kBad[] = {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::quiet_NaN(), 1e39};
  for (const WeightFormat format : kFormats)
    for (const double bad : kBad) {
      const auto group = static_cast<size_t>(traits_of(format).group);
      const std::vector<double> good = normal_values(traits_of(format).group * 3, 1, "finite");
      std::vector<double> values = good;
      values[group + 7] = bad;
      const std::vector<float> decoded = encoded(format, values).decoded(), expected = encoded(format, good).decoded();
      for (size_t i = 0; i < decoded.size(); ++i) {
        if (i / group == 1)
          ASSERT_TRUE(std::isnan(decoded[i])) << name_of(format) << bad;
        else
          ASSERT_EQ(decoded[i], expected[i]) << name_of(format) << bad;
      }
    }
}

TEST(Quantised, EncodesTheSmallestAndTheLargestMagnitudes) {
  for (const WeightFormat format : kFormats) {
    for (const double largest : {0x1p127, 0x1p-126, 0x1p-149 * 448}) {
      std::vector<double> values(static_cast<size_t>(traits_of(format).group));
      values[0] = largest;
      values[1] = -largest;
      values[2] = largest / 2;
      const std::vector<float> decoded = encoded(format, values).decoded();
      // Values below half of the smallest number of mxfp4, 2^-128, become 0.
      const double bound = std::max(largest / 14, format == WeightFormat::mxfp4 ? 0x1p-129 : 0);
      for (size_t i = 0; i < values.size(); ++i)
        EXPECT_LE(std::abs(static_cast<double>(decoded[i]) - values[i]), bound)
            << name_of(format) << " " << values[i] << " of " << largest << " as " << decoded[i];
    }
  }
}

}  // namespace
}  // namespace witan
