#include "witan/convert/elements/block_codec.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <vector>

namespace witan {
namespace {

constexpr int64_t kDequantisedStretch = 1024;
constexpr int64_t kBlocksOfTask = 64;

}  // namespace

const BlockCodec* block_codec(Element type) {
  static constexpr std::array kCodecs{&kQ5_0Codec, &kQ8_0Codec, &kQ4KCodec, &kQ5KCodec, &kQ6KCodec, &kMxfp4Codec};
  for (const BlockCodec* codec : kCodecs)
    if (codec->type == type) return codec;
  return nullptr;
}

void copy_from_blocks(Element to_type, std::byte* to, Element from_type, const std::byte* blocks, int64_t first,
                      int64_t stride, int64_t count) {
  const BlockCodec& codec = *block_codec(from_type);
  std::array<float, kDequantisedStretch> values;
  std::array<float, kLargestBlock> block;
  int64_t held = -1;  // the block that `block` holds
  for (int64_t done = 0; done < count;) {
    int64_t now = 0;
    while (now < kDequantisedStretch && done + now < count) {
      const int64_t at = first + (done + now) * stride, in_block = at % codec.block;
      if (at / codec.block != held) {
        held = at / codec.block;
        codec.dequantise(blocks + held * codec.bytes, block.data());
      }
      const int64_t run =
          stride == 1 ? std::min({codec.block - in_block, kDequantisedStretch - now, count - done - now}) : 1;
      std::copy_n(block.data() + in_block, run, values.data() + now);
      now += run;
    }
    copy_elements(to_type, to + done * size_of(to_type), Element::f32,
                  reinterpret_cast<const std::byte*>(values.data()), 1, now);
    done += now;
  }
}

RoundingError quantise_blocks(const BlockCodec& codec, std::span<const float> values, std::byte* out,
                              ThreadPool& pool) {
  const auto blocks = static_cast<int64_t>(values.size()) / codec.block;
  assert(blocks * codec.block == static_cast<int64_t>(values.size()));
  std::vector<RoundingError> errors(static_cast<size_t>((blocks + kBlocksOfTask - 1) / kBlocksOfTask));
  pool.run(static_cast<int64_t>(errors.size()), [&](int64_t task) {
    std::array<float, kLargestBlock> rounded;
    for (int64_t i = task * kBlocksOfTask; i < std::min(blocks, (task + 1) * kBlocksOfTask); ++i) {
      const auto block = values.subspan(static_cast<size_t>(i * codec.block), static_cast<size_t>(codec.block));
      codec.quantise(block.data(), out + i * codec.bytes);
      codec.dequantise(out + i * codec.bytes, rounded.data());
      errors[static_cast<size_t>(task)].add(block, rounded);
    }
  });
  RoundingError sum;
  for (const RoundingError& error : errors) sum += error;
  return sum;
}

}  // namespace witan
