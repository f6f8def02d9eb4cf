// Matrices [rows, columns] in float8 (E4M3) of which each block of `block` x `block` elements has a scale that
// multiplies it, scales [ceil(rows / block), ceil(columns / block)]: DeepSeek-V3's weights.
// Source: https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/inference/kernel.py
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/convert/elements/elements.h"
#include "witan/convert/elements/rounding_error.h"

namespace witan {

// Values as bfloat16.
std::vector<std::byte> dequantise_fp8_blocks(std::span<const std::byte> values, Element scale_type,
                                             std::span<const std::byte> scales, int64_t rows, int64_t columns,
                                             int64_t block);

// Appends codes (a byte each) and float32 scales, the largest magnitude of each block over 448, and returns the error.
// All rows but a matrix' last ones must be whole blocks.
RoundingError quantise_fp8_blocks(std::span<const float> values, int64_t columns, int64_t block, ThreadPool& pool,
                                  std::vector<std::byte>& codes, std::vector<std::byte>& scales);

}  // namespace witan
