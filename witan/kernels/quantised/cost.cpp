#include <array>

#include "witan/kernels/quantised/quantised.h"

namespace witan::kernels {

const WeightFormatTraits& traits_of(WeightFormat format) {
  static constexpr std::array<WeightFormatTraits, 5> kTraits{{
      {.name = "none", .bits = 0, .group = 1, .scale = DType::f32, .scales = 0},
      {.name = "nf4", .bits = 4, .group = 64, .scale = DType::f32, .scales = 1},
      {.name = "mxfp4", .bits = 4, .group = 32, .scale = DType::bf16, .scales = 1},
      {.name = "int4", .bits = 4, .group = 128, .scale = DType::f32, .scales = 2},
      {.name = "fp8", .bits = 8, .group = 128, .scale = DType::f32, .scales = 1},
  }};
  return kTraits[static_cast<size_t>(format)];
}

void decode_weights(Stream& stream, const Codes& codes, Tensor out) {
  WITAN_LAUNCH(stream, decode_weights, (Cost{0, bytes_of(codes.words, codes.scales, out)}), codes, out);
}

}  // namespace witan::kernels
