// Formats of Hugging Face folders in which narrow elements share a scale: MXFP4, packed integers, blocks of float8.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/convert/elements/elements.h"
#include "witan/convert/elements/error_feedback.h"

namespace witan {

// MXFP4 of OCP's Microscaling formats (v1.0, sections 5.3 and 6.3): groups of 32 elements in float4 (E2M1) with a scale
// 2^(scale - 127) for each group.
inline constexpr int kMxGroup = 32;

struct MxGroup {
  uint8_t scale = 0;
  std::array<uint8_t, kMxGroup> codes{};  // of 4 bits, the sign above the magnitude

  void dequantise(float* values) const;
};

// Quantises one group. Of the three scales nearest to the largest value's exponent it takes the one with the smallest
// squared error; codes are rounded to nearest even and clamped. Values that a group can represent exactly are kept.
// Values must be finite.
MxGroup quantise_mxfp4(const float* values);

// Dequantises gpt-oss's layout, two elements in a byte with the first in the lower half, to bfloat16, which represents
// every value within its range of exponents. `scales` has one byte for each 16 bytes of `blocks`.
std::vector<std::byte> dequantise_mxfp4(std::span<const std::byte> blocks, std::span<const std::byte> scales);
// Appends values, a multiple of 32, in that layout and returns the error.
RoundingError quantise_mxfp4_pairs(std::span<const float> values, ThreadPool& pool, std::vector<std::byte>& blocks,
                                   std::vector<std::byte>& scales);

// Integers of 4 or 8 bits in the format "pack-quantized" of compressed-tensors. The elements of a row are increased by
// 2^(bits - 1) and packed into words of 32 bits, lowest bits first; the last word is padded with zeros. Each group of
// consecutive elements of a row has a scale. Source:
// compressed_tensors/compressors/pack_quantized of https://github.com/vllm-project/compressed-tensors

// The number of 32-bit words in a row.
inline int64_t packed_words(int64_t columns, int bits) {
  return (columns * bits + 31) / 32;
}

// Returns the values in the dtype of the scales [rows, groups], to which each product is rounded, as in
// compressed-tensors. `groups` divides `columns`.
std::vector<std::byte> dequantise_packed(std::span<const std::byte> words, Element scale_type,
                                         std::span<const std::byte> scales, int64_t rows, int64_t columns,
                                         int64_t groups, int bits);

// Appends words and scales (F32, F16 or BF16, never negative) for whole rows and returns the error. Scales for 4 bits
// come from a least-squares search (scale_search.h), scales for 8 bits from the largest magnitude. With 4 bits the size
// of a group is a multiple of 8. `feedback`: of the matrix's inputs, or null: every element is rounded to the nearest.
RoundingError quantise_packed(std::span<const float> values, int64_t columns, int64_t groups, int bits,
                              Element scale_type, ThreadPool& pool, std::vector<std::byte>& words,
                              std::vector<std::byte>& scales, const ErrorFeedback* feedback = nullptr);

// Matrices [rows, columns] in float8 (E4M3) with a scale for each block of `block` x `block` elements, scales
// [ceil(rows / block), ceil(columns / block)], as DeepSeek-V3's weights are stored. Source:
// https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/inference/kernel.py

// Returns the values as bfloat16.
std::vector<std::byte> dequantise_fp8_blocks(std::span<const std::byte> values, Element scale_type,
                                             std::span<const std::byte> scales, int64_t rows, int64_t columns,
                                             int64_t block);

// Appends codes (one byte each) and float32 scales, which are the largest magnitude of a block divided by 448, and
// returns the error. `values` are whole rows of blocks, except at the end of a matrix.
RoundingError quantise_fp8_blocks(std::span<const float> values, int64_t columns, int64_t block, ThreadPool& pool,
                                  std::vector<std::byte>& codes, std::vector<std::byte>& scales);

}  // namespace witan
