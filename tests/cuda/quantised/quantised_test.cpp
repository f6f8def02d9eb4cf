#include "witan/kernels/quantised/quantised.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "support/cuda_rank.h"
#include "witan/base/numbers/rng.h"

namespace witan {
namespace {

using kernels::Codes;
using kernels::traits_of;
using kernels::WeightFormat;
using kernels::WeightFormatTraits;
using testing::CudaTest;

constexpr WeightFormat kFormats[] = {WeightFormat::nf4, WeightFormat::mxfp4, WeightFormat::int4, WeightFormat::fp8};
constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

class QuantisedOnGpu : public CudaTest {
 protected:
  // Any words, with scales from float32's smallest to those with which float16 overflows. `elements`: whole groups.
  Codes random_codes(WeightFormat format, int64_t elements) {
    const WeightFormatTraits& traits = traits_of(format);
    Codes codes{format, host.stream.empty({traits.words(elements)}, DType::i32),
                host.stream.empty({traits.numbers(elements)}, traits.scale)};
    const Philox rng(5, static_cast<uint64_t>(elements));
    uint64_t draw = 0;
    for (int32_t& word : codes.words.span<int32_t>())
      word = static_cast<int32_t>(rng.uniform(draw++) * 0x1p32 - 0x1p31);
    dispatch_floating(traits.scale, [&]<class S>() {
      for (S& scale : codes.scales.span<S>()) {
        const int exponent = static_cast<int>(rng.uniform(draw++) * 160) - 145;
        const double fraction = format == WeightFormat::mxfp4 ? 1 : 1 + rng.uniform(draw++);
        scale = S(static_cast<float>(std::ldexp(fraction, exponent)));
      }
      // The offset of any of the first integers, the same for all groups.
      for (int64_t i = 0; traits.scales == 2 && i < codes.scales.elements(); i += 2)
        codes.scales.data<S>()[i + 1] = S(-static_cast<float>(i % 16) * float(codes.scales.data<S>()[i]));
    });
    return codes;
  }
  Codes to_gpu(const Codes& codes) {
    return {codes.format, CudaTest::to_gpu(codes.words), CudaTest::to_gpu(codes.scales)};
  }
  // Whether both have the same bits; any NaN equals any other.
  ::testing::AssertionResult same(const Tensor& on_gpu, const Tensor& expected) {
    const Tensor found = to_host(on_gpu);
    return dispatch_floating(expected.dtype(), [&]<class T>() -> ::testing::AssertionResult {
      for (int64_t i = 0; i < expected.elements(); ++i) {
        const T a = found.data<T>()[i], b = expected.data<T>()[i];
        const bool both_nan = std::isnan(static_cast<double>(a)) && std::isnan(static_cast<double>(b));
        if (!both_nan && std::memcmp(&a, &b, sizeof(T)) != 0)
          return ::testing::AssertionFailure() << "element " << i << ": " << double(a) << " against " << double(b);
      }
      return ::testing::AssertionSuccess();
    });
  }
};

TEST_F(QuantisedOnGpu, DecodesToTheBitsOfTheCpu) {
  for (const WeightFormat format : kFormats)
    for (const DType dtype : kDTypes)
      for (const int64_t groups : {0, 1, 2, 3, 31, 257, 4099}) {
        const int64_t elements = groups * traits_of(format).group;
        const Codes codes = random_codes(format, elements);
        const Tensor expected = host.poisoned({elements}, dtype), out = poisoned({elements}, dtype);
        kernels::decode_weights(host.stream, codes, expected);
        kernels::decode_weights(gpu(), to_gpu(codes), out);
        EXPECT_TRUE(same(out, expected)) << name_of(format) << dtype << groups;
      }
}

TEST_F(QuantisedOnGpu, DecodesPartsByThemselves) {
  for (const WeightFormat format : kFormats) {
    const WeightFormatTraits& traits = traits_of(format);
    const Codes codes = random_codes(format, 300 * traits.group), there = to_gpu(codes);
    const Tensor whole = host.poisoned({codes.elements()}, DType::bf16);
    kernels::decode_weights(host.stream, codes, whole);
    for (const auto& [first, groups] : {std::pair<int64_t, int64_t>{1, 299}, {7, 1}, {299, 1}}) {
      const int64_t begin = first * traits.group, size = groups * traits.group;
      const Codes part{format, there.words.narrow(0, traits.words(begin), traits.words(size)),
                       there.scales.narrow(0, traits.numbers(begin), traits.numbers(size))};
      const Tensor out = poisoned(whole.shape(), DType::bf16);
      kernels::decode_weights(gpu(), part, out.narrow(0, begin, size));
      EXPECT_TRUE(same(out.narrow(0, begin, size), whole.narrow(0, begin, size))) << traits.name << first;
      for (const double before : testing::values(to_host(out.narrow(0, 0, begin)))) ASSERT_TRUE(std::isnan(before));
    }
  }
}

// Elements and bytes beyond 32 bits.
TEST_F(QuantisedOnGpu, DecodesTheEndOfTwoBillionElements) {
  const WeightFormatTraits& traits = traits_of(WeightFormat::nf4);
  const int64_t elements = (int64_t{1} << 31) + 5 * traits.group, tail = 5 * traits.group;
  if (std::getenv("WITAN_TEST_RAW_MEMORY") != nullptr) GTEST_SKIP() << "the arena is too small";
  const Codes end = random_codes(WeightFormat::nf4, tail);
  const Codes codes{WeightFormat::nf4, gpu().empty({traits.words(elements)}, DType::i32),
                    gpu().empty({traits.numbers(elements)}, DType::f32)};
  const auto last = [](const Tensor& of, int64_t count) { return of.narrow(0, of.elements() - count, count); };
  gpu().write(last(codes.words, end.words.elements()), end.words.raw());
  gpu().write(last(codes.scales, end.scales.elements()), end.scales.raw());
  const Tensor out = gpu().empty({elements}, DType::bf16), expected = host.poisoned({tail}, DType::bf16);
  kernels::decode_weights(gpu(), codes, out);
  kernels::decode_weights(host.stream, end, expected);
  EXPECT_TRUE(same(last(out, tail), expected));
}

}  // namespace
}  // namespace witan
