// Decodes groups of codes on a CPU.
#pragma once

#include <array>
#include <bit>
#include <cassert>
#include <cmath>

#include "witan/base/numbers/float8.h"
#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/quantised/rules.h"

namespace witan::kernels::cpu {

// The scales' type in memory.
template <WeightFormat kFormat>
using ScaleOf = std::conditional_t<kFormat == WeightFormat::mxfp4, bf16, float>;

// The values of a group's 16 codes are rounded once, and then looked up.
template <WeightFormat kFormat, class S, class T>
void decode_group(const uint32_t* words, const S* scales, T* out) {
  std::array<T, 16> values;
  for (size_t code = 0; code < values.size(); ++code) {
    const float number = rules::kCodeValues<kFormat>[code];
    if constexpr (kFormat == WeightFormat::int4)
      values[code] = T(std::fma(number, float(scales[0]), float(scales[1])));
    else
      values[code] = T(number * float(scales[0]));
  }
  for (int64_t i = 0; i < rules::kTraitsOf<kFormat>.group; i += 8) {
    const uint32_t word = words[i / 8];
    for (unsigned j = 0; j < 8; ++j) out[i + j] = values[word >> (4 * j) & 15U];
  }
}

template <class T>
void decode_float8_group(const uint32_t* words, float scale, T* out) {
  const auto* codes = reinterpret_cast<const uint8_t*>(words);
#pragma omp simd
  for (int64_t i = 0; i < rules::kTraitsOf<WeightFormat::fp8>.group; ++i)
    store(out[i], float(std::bit_cast<e4m3>(codes[i])) * scale);
}

// out: the values of the groups from `first` on, of all codes.
template <WeightFormat kFormat, class S, class T>
void decode_groups(T* out, const uint32_t* words, const S* scales, int64_t first, int64_t count) {
  constexpr WeightFormatTraits kTraits = rules::kTraitsOf<kFormat>;
  for (int64_t g = first; g < first + count; ++g, out += kTraits.group) {
    const uint32_t* const from = words + kTraits.words(g * kTraits.group);
    const S* const by = scales + g * kTraits.scales;
    if constexpr (kFormat == WeightFormat::fp8)
      decode_float8_group(from, *by, out);
    else
      decode_group<kFormat>(from, by, out);
  }
}

}  // namespace witan::kernels::cpu
