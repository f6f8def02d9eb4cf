// MXFP4 as ggml has it: the scale's exponent, then 16 bytes, element j in a lower half, j + 16 in an upper.
#include "witan/convert/elements/block_codec.h"
#include "witan/convert/elements/mxfp4.h"

namespace witan {
namespace ggml_mxfp4 {
namespace {

constexpr size_t kHalf = kMxGroup / 2;

void dequantise(const std::byte* from, float* values) {
  MxGroup group;
  group.scale = static_cast<uint8_t>(from[0]);
  for (size_t i = 0; i < kHalf; ++i) {
    const auto both = static_cast<uint8_t>(from[1 + i]);
    group.codes[i] = both & 15U;
    group.codes[i + kHalf] = both >> 4;
  }
  group.dequantise(values);
}

void quantise(const float* values, std::byte* to) {
  const MxGroup group = quantise_mxfp4(values);
  to[0] = static_cast<std::byte>(group.scale);
  for (size_t i = 0; i < kHalf; ++i) to[1 + i] = static_cast<std::byte>(group.codes[i] | group.codes[i + kHalf] << 4);
}

}  // namespace
}  // namespace ggml_mxfp4

constexpr BlockCodec kMxfp4Codec{Element::mxfp4, kMxGroup, 17, ggml_mxfp4::dequantise, ggml_mxfp4::quantise};

}  // namespace witan
