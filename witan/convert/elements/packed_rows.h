// Matrices in whole numbers of 4 or 8 bits, as compressed-tensors' format "pack-quantized" has them: the elements of a
// row, increased by 2^(bits - 1), one after another from the lowest bits on, in words of 32 bits, the last one filled
// up with zeros. Each group of neighbouring elements of a row has a scale that multiplies it. Source:
// compressed_tensors/compressors/pack_quantized of https://github.com/vllm-project/compressed-tensors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/convert/elements/elements.h"
#include "witan/convert/elements/rounding_error.h"

namespace witan {

// 32-bit words of a row.
inline int64_t packed_words(int64_t columns, int bits) {
  return (columns * bits + 31) / 32;
}

// Values in the dtype of the scales [rows, groups], in which each product is rounded, as compressed-tensors does.
// `groups` divides `columns`.
std::vector<std::byte> dequantise_packed(std::span<const std::byte> words, Element scale_type,
                                         std::span<const std::byte> scales, int64_t rows, int64_t columns,
                                         int64_t groups, int bits);

// Appends words and scales (of F32, F16 or BF16, never negative) of whole rows, and returns the error. 4 bits have
// scales of the least squares (scale_search.h), 8 bits those of the largest magnitude. Groups of 4 bits are multiples
// of 8.
RoundingError quantise_packed(std::span<const float> values, int64_t columns, int64_t groups, int bits,
                              Element scale_type, ThreadPool& pool, std::vector<std::byte>& words,
                              std::vector<std::byte>& scales);

}  // namespace witan
