#include "witan/kernels/quantised/cpu/decode_groups.h"

namespace witan::kernels {

void decode_weights_on_host(WeightFormat format, std::span<const uint32_t> words, std::span<const float> scales,
                            std::span<float> values) {
  rules::dispatch_format(format, [&]<WeightFormat kFormat>() {
    cpu::decode_groups<kFormat>(values.data(), words.data(), scales.data(), 0,
                                std::ssize(values) / traits_of(format).group);
  });
}

void cpu::decode_weights(Stream& stream, const Codes& codes, Tensor out) {
  const WeightFormatTraits& traits = traits_of(codes.format);
  assert(codes.words.contiguous() && codes.scales.contiguous() && out.contiguous());
  assert(out.elements() == codes.elements() && codes.scales.elements() == traits.numbers(out.elements()));
  const auto* const words = reinterpret_cast<const uint32_t*>(codes.words.data<int32_t>());
  rules::dispatch_format(codes.format, [&]<WeightFormat kFormat>() {
    const auto* const scales = codes.scales.data<ScaleOf<kFormat>>();
    dispatch_floating(out.dtype(), [&]<class T>() {
      T* const to = out.data<T>();
      stream.pool().for_ranges(out.elements() / traits.group, kTaskElements / traits.group,
                               [=](int64_t begin, int64_t end) {
                                 decode_groups<kFormat>(to + begin * traits.group, words, scales, begin, end - begin);
                               });
    });
  });
}

}  // namespace witan::kernels
