// Formats of Hugging Face folders in which narrow elements share a scale: MXFP4, packed integers, blocks of float8.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/convert/elements/elements.h"

namespace witan {

// MXFP4 of OCP's Microscaling formats (v1.0, sections 5.3 and 6.3): groups of 32 elements in float4 (E2M1) with a scale
// 2^(scale - 127) for each group.
inline constexpr int kMxGroup = 32;

struct MxGroup {
  uint8_t scale = 0;
  std::array<uint8_t, kMxGroup> codes{};  // of 4 bits, the sign above the magnitude

  void dequantise(float* values) const;
};

// The scale among the three nearest to the largest value's exponent that has the smallest squared error; codes rounded
// to nearest even, values beyond the largest code to it. Values that a group can hold come back the same. They must be
// finite.
MxGroup quantise_mxfp4(const float* values);

// gpt-oss's layout, two elements in a byte, the first in its lower half: as bfloat16, which holds every such value but
// those beyond its exponents. `scales` has one byte for each 16 of `blocks`.
std::vector<std::byte> dequantise_mxfp4(std::span<const std::byte> blocks, std::span<const std::byte> scales);
// Appends values, a multiple of 32, in that layout, and returns the error.
RoundingError quantise_mxfp4_pairs(std::span<const float> values, ThreadPool& pool, std::vector<std::byte>& blocks,
                                   std::vector<std::byte>& scales);

// Matrices in whole numbers of 4 or 8 bits, as compressed-tensors' format "pack-quantized" has them: the elements of a
// row, increased by 2^(bits - 1), one after another from the lowest bits on, in words of 32 bits, the last one filled
// up with zeros. Each group of neighbouring elements of a row has a scale that multiplies it. Source:
// compressed_tensors/compressors/pack_quantized of https://github.com/vllm-project/compressed-tensors

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

// Matrices [rows, columns] in float8 (E4M3) of which each block of `block` x `block` elements has a scale that
// multiplies it, scales [ceil(rows / block), ceil(columns / block)]: DeepSeek-V3's weights. Source:
// https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/inference/kernel.py

// Values as bfloat16.
std::vector<std::byte> dequantise_fp8_blocks(std::span<const std::byte> values, Element scale_type,
                                             std::span<const std::byte> scales, int64_t rows, int64_t columns,
                                             int64_t block);

// Appends codes (a byte each) and float32 scales, the largest magnitude of each block over 448, and returns the error.
// All rows but a matrix' last ones must be whole blocks.
RoundingError quantise_fp8_blocks(std::span<const float> values, int64_t columns, int64_t block, ThreadPool& pool,
                                  std::vector<std::byte>& codes, std::vector<std::byte>& scales);

}  // namespace witan
