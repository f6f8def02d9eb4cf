#include <algorithm>
#include <cassert>
#include <vector>

#include "witan/base/numbers/half.h"
#include "witan/base/threads/threads.h"
#include "witan/kernels/quantised/quantised.h"

namespace witan::kernels {

Codes empty_codes(Stream& stream, WeightFormat format, int64_t elements, MemoryTag tag) {
  const WeightFormatTraits& traits = traits_of(format);
  return {format, stream.empty({traits.words(elements)}, DType::i32, tag),
          stream.empty({traits.numbers(elements)}, traits.scale, tag)};
}

void encode_weights(Stream& stream, const Codes& codes, int64_t first, std::span<const double> values) {
  const WeightFormatTraits& traits = traits_of(codes.format);
  const auto elements = static_cast<int64_t>(values.size());
  assert(first % traits.group == 0 && elements % traits.group == 0);
  std::vector<uint32_t> words(static_cast<size_t>(traits.words(elements)));
  std::vector<float> scales(static_cast<size_t>(traits.numbers(elements)));
  constexpr int64_t kGrain = 1 << 6;  // groups
  stream.pool().for_ranges(elements / traits.group, kGrain, [&](int64_t begin, int64_t end) {
    const auto part = [&](auto& of, int64_t per_group) {
      return std::span(of).subspan(static_cast<size_t>(begin * per_group),
                                   static_cast<size_t>((end - begin) * per_group));
    };
    encode_weights(codes.format, part(values, traits.group), part(words, traits.words(traits.group)),
                   part(scales, traits.scales));
  });
  const Codes to = codes.part(first, elements);
  stream.write(to.words, words.data());
  dispatch_floating(to.scales.dtype(), [&]<class T>() {
    std::vector<T> kept(scales.size());
    std::ranges::transform(scales, kept.begin(), [](float scale) { return T(scale); });
    stream.write(to.scales, kept.data());
  });
}

}  // namespace witan::kernels
