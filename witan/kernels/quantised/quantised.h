// Matrices that are never trained, kept as codes of 4 or 8 bits with a scale for each group of adjacent elements, and
// decoded while they are used.
//
// A group is a run of elements of a row, in the flat order of a row-major matrix, so that any part of the matrix that
// begins and ends between groups can be coded, moved and decoded by itself. The value of a code is, in float32,
//   nf4    table[code] * scale            NormalFloat4 (Dettmers et al., "QLoRA", 2023, arXiv:2305.14314), group 64
//   mxfp4  e2m1(code) * scale             OCP Microscaling Formats 1.0: scale is a power of 2, group 32
//   int4   fma(code, scale, offset)       unsigned codes; offset = -zero * scale, group 128
//   fp8    e4m3(code) * scale             group 128
// rounded once to the dtype in which the matrix is used.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "witan/kernels/common/launch.h"
#include "witan/tensor/tensor.h"

namespace witan::kernels {

enum class WeightFormat : uint8_t { none, nf4, mxfp4, int4, fp8 };  // none: the dtype of the model

struct WeightFormatTraits {
  std::string_view name;
  int64_t bits;    // of a code
  int64_t group;   // elements with one scale
  DType scale;     // of scales
  int64_t scales;  // numbers for each group: 2 if there is an offset

  // Codes in a word, the first in the lowest bits.
  int64_t codes_per_word() const { return 32 / bits; }
  int64_t words(int64_t elements) const { return elements / codes_per_word(); }
  int64_t numbers(int64_t elements) const { return elements / group * scales; }
  int64_t bytes(int64_t elements) const { return 4 * words(elements) + size_of(scale) * numbers(elements); }
};
const WeightFormatTraits& traits_of(WeightFormat format);
inline std::string_view name_of(WeightFormat format) {
  return traits_of(format).name;
}

// The codes of `elements` adjacent elements, a whole number of groups.
struct Codes {
  WeightFormat format = WeightFormat::none;
  Tensor words;   // i32 [elements / codes_per_word]
  Tensor scales;  // [elements / group * scales], an offset behind its scale

  bool defined() const { return format != WeightFormat::none; }
  int64_t elements() const { return words.elements() * traits_of(format).codes_per_word(); }
  // The codes of elements [first, first + elements), whole groups.
  Codes part(int64_t first, int64_t elements) const {
    const WeightFormatTraits& traits = traits_of(format);
    return {format, words.narrow(0, traits.words(first), traits.words(elements)),
            scales.narrow(0, traits.numbers(first), traits.numbers(elements))};
  }
};

// Memory for the codes of `elements` elements, whole groups.
Codes empty_codes(Stream& stream, WeightFormat format, int64_t elements, MemoryTag tag);

// out [codes.elements()], of any floating dtype: the values of the codes.
void decode_weights(Stream& stream, const Codes& codes, Tensor out);
WITAN_KERNEL_TWINS(decode_weights)

// The codes of values, a whole number of groups, in host memory: words [traits.words(n)], and scales in
// [traits.numbers(n)] as float32, which their dtype holds exactly. Each code is the nearest of its group, ties to the
// even code; the scale is that with which the largest magnitude is represented (nf4, fp8), the power of 2 that the OCP
// specification prescribes (mxfp4), or that of the range of values with 0 (int4). Values that are codes of nf4 or mxfp4
// decoded are encoded without a difference. A group with a value beyond 2^127, or that is not a number, gets a scale
// that is not a number.
void encode_weights(WeightFormat format, std::span<const double> values, std::span<uint32_t> words,
                    std::span<float> scales);
// Encodes values, in host memory, into the codes of elements [first, first + values.size()), on any device. Returns
// what is lost.
struct EncodingLoss {
  double squared_error = 0, squared_values = 0;  // sums
};
EncodingLoss encode_weights(Stream& stream, const Codes& codes, int64_t first, std::span<const double> values);
// Decodes in host memory.
void decode_weights_on_host(WeightFormat format, std::span<const uint32_t> words, std::span<const float> scales,
                            std::span<float> values);

}  // namespace witan::kernels
