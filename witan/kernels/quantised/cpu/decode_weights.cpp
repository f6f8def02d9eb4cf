#include <array>
#include <bit>
#include <cassert>
#include <cmath>

#include "witan/base/numbers/float8.h"
#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/quantised/rules.h"

namespace witan::kernels {
namespace {

// Calls body.template operator()<format>().
template <class Body>
void dispatch_format(WeightFormat format, const Body& body) {
  switch (format) {
    case WeightFormat::nf4:
      return body.template operator()<WeightFormat::nf4>();
    case WeightFormat::mxfp4:
      return body.template operator()<WeightFormat::mxfp4>();
    case WeightFormat::int4:
      return body.template operator()<WeightFormat::int4>();
    case WeightFormat::fp8:
      return body.template operator()<WeightFormat::fp8>();
    case WeightFormat::none:
      break;
  }
  assert(false && "weights that are not coded have nothing to decode");
}

// The values of a group's 16 codes are rounded once, and then looked up.
template <WeightFormat kFormat, class S, class T>
void decode_group(const uint32_t* words, const S* scales, T* out) {
  const WeightFormatTraits& traits = traits_of(kFormat);
  std::array<T, 16> values;
  for (size_t code = 0; code < values.size(); ++code) {
    const float number = rules::kCodeValues<kFormat>[code];
    if constexpr (kFormat == WeightFormat::int4)
      values[code] = T(std::fma(number, float(scales[0]), float(scales[1])));
    else
      values[code] = T(number * float(scales[0]));
  }
  for (int64_t i = 0; i < traits.group; i += 8) {
    const uint32_t word = words[i / 8];
    for (unsigned j = 0; j < 8; ++j) out[i + j] = values[word >> (4 * j) & 15U];
  }
}

template <class T>
void decode_float8_group(const uint32_t* words, float scale, T* out, int64_t group) {
  const auto* codes = reinterpret_cast<const uint8_t*>(words);
#pragma omp simd
  for (int64_t i = 0; i < group; ++i) cpu::store(out[i], float(std::bit_cast<e4m3>(codes[i])) * scale);
}

template <WeightFormat kFormat, class S, class T>
void decode_groups(const uint32_t* words, const S* scales, T* out, int64_t begin, int64_t end) {
  const WeightFormatTraits& traits = traits_of(kFormat);
  for (int64_t g = begin; g < end; ++g) {
    const uint32_t* const from = words + traits.words(g * traits.group);
    const S* const by = scales + g * traits.scales;
    if constexpr (kFormat == WeightFormat::fp8)
      decode_float8_group(from, float(*by), out + g * traits.group, traits.group);
    else
      decode_group<kFormat>(from, by, out + g * traits.group);
  }
}

}  // namespace

void decode_weights_on_host(WeightFormat format, std::span<const uint32_t> words, std::span<const float> scales,
                            std::span<float> values) {
  dispatch_format(format, [&]<WeightFormat kFormat>() {
    decode_groups<kFormat>(words.data(), scales.data(), values.data(), 0, std::ssize(values) / traits_of(format).group);
  });
}

void cpu::decode_weights(Stream& stream, const Codes& codes, Tensor out) {
  const WeightFormatTraits& traits = traits_of(codes.format);
  assert(codes.words.contiguous() && codes.scales.contiguous() && out.contiguous());
  assert(out.elements() == codes.elements() && codes.scales.elements() == traits.numbers(out.elements()));
  const auto* const words = reinterpret_cast<const uint32_t*>(codes.words.data<int32_t>());
  dispatch_format(codes.format, [&]<WeightFormat kFormat>() {
    using S = std::conditional_t<kFormat == WeightFormat::mxfp4, bf16, float>;
    const S* const scales = codes.scales.data<S>();
    dispatch_floating(out.dtype(), [&]<class T>() {
      T* const to = out.data<T>();
      stream.pool().for_ranges(
          out.elements() / traits.group, kTaskElements / traits.group,
          [=](int64_t begin, int64_t end) { decode_groups<kFormat>(words, scales, to, begin, end); });
    });
  });
}

}  // namespace witan::kernels
