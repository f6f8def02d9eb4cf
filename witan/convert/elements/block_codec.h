// ggml's quantised types, in which the elements of a block share a scale. Each type has a codec for one block;
// everything else is written once for all types. Any stretch of elements can be read, so that no tensor has to be
// dequantised as a whole.
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
  int64_t block, bytes;  // number of elements in a block, and its size in bytes
  // Both convert one block. All bytes are valid input; values must pass require_quantisable().
  void (*dequantise)(const std::byte* from, float* values);
  void (*quantise)(const float* values, std::byte* to);
};

extern const BlockCodec kQ5_0Codec, kQ8_0Codec, kQ4KCodec, kQ5KCodec, kQ6KCodec, kMxfp4Codec;

// Null for a type without blocks.
const BlockCodec* block_codec(Element type);

// Does what copy_elements() does, for elements first, first + stride, … of a tensor stored in blocks.
void copy_from_blocks(Element to_type, std::byte* to, Element from_type, const std::byte* blocks, int64_t first,
                      int64_t stride, int64_t count);

// Quantises whole blocks on the pool's threads and returns the error. The bytes do not depend on the number of threads.
RoundingError quantise_blocks(const BlockCodec& codec, std::span<const float> values, std::byte* out, ThreadPool& pool);

}  // namespace witan
