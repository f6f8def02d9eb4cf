// ggml's quantised types, in which neighbouring elements share a scale, as a family: each type has a codec of one
// block, and everything else is written once for all of them. Elements are read wherever they are asked for, so that
// no tensor is dequantised as a whole.
// Source of the layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "witan/base/threads/threads.h"
#include "witan/convert/elements/elements.h"

namespace witan {

inline constexpr int64_t kLargestBlock = 256;  // elements

struct BlockCodec {
  Element type;
  int64_t block, bytes;  // elements of a block, and its size
  // Both convert one block. Any bytes have values; what is quantised must pass require_quantisable().
  void (*dequantise)(const std::byte* from, float* values);
  void (*quantise)(const float* values, std::byte* to);
};

// The types.
extern const BlockCodec kQ5_0Codec, kQ8_0Codec, kQ4KCodec, kQ5KCodec, kQ6KCodec, kMxfp4Codec;

// Null for a type whose elements stand alone.
const BlockCodec* block_codec(Element type);

// Copies as copy_elements() does, from elements first, first + stride, … of a tensor in blocks.
void copy_from_blocks(Element to_type, std::byte* to, Element from_type, const std::byte* blocks, int64_t first,
                      int64_t stride, int64_t count);

// Quantises whole blocks on the pool's threads, and returns the error. The bytes do not depend on the threads.
RoundingError quantise_blocks(const BlockCodec& codec, std::span<const float> values, std::byte* out, ThreadPool& pool);

}  // namespace witan
