// ggml's quantised types in which neighbouring elements share a scale: read wherever they are asked for, so that no
// tensor is dequantised as a whole.
// Sources: block_q8_0 and block_mxfp4 in https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h, and
// quantize_row_q8_0_ref() in ggml-quants.c there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "witan/convert/elements.h"

namespace witan {

// Whether elements stand in blocks (q8_0, mxfp4).
bool stands_in_blocks(Element element);

// As copy_elements(), of elements first, first + stride, … of a tensor in blocks.
void copy_from_blocks(Element to_type, std::byte* to, Element from_type, const std::byte* blocks, int64_t first,
                      int64_t stride, int64_t count);

// Values, a multiple of 32, in Q8_0, as llama.cpp rounds them: `out` has 34 bytes for each 32. What was dequantised
// from Q8_0 becomes the same bytes again.
void quantise_q8_0(std::span<const float> values, std::byte* out);

}  // namespace witan
