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

namespace {

EncodingLoss loss_of(std::span<const double> values, std::span<const float> decoded) {
  EncodingLoss loss;
  for (size_t i = 0; i < values.size(); ++i) {
    const double error = static_cast<double>(decoded[i]) - values[i];
    loss.squared_error += error * error;
    loss.squared_values += values[i] * values[i];
  }
  return loss;
}

}  // namespace

EncodingLoss encode_weights(Stream& stream, const Codes& codes, int64_t first, std::span<const double> values) {
  const WeightFormatTraits& traits = traits_of(codes.format);
  const auto elements = static_cast<int64_t>(values.size());
  assert(first % traits.group == 0 && elements % traits.group == 0);
  std::vector<uint32_t> words(static_cast<size_t>(traits.words(elements)));
  std::vector<float> scales(static_cast<size_t>(traits.numbers(elements)));
  constexpr int64_t kChunk = 1 << 8;  // groups
  const int64_t groups = elements / traits.group;
  std::vector<EncodingLoss> losses(static_cast<size_t>((groups + kChunk - 1) / kChunk));
  stream.pool().run(std::ssize(losses), [&](int64_t chunk) {
    const int64_t begin = chunk * kChunk, count = std::min(kChunk, groups - begin);
    const auto part = [&](auto& of, int64_t per_group) {
      return std::span(of).subspan(static_cast<size_t>(begin * per_group), static_cast<size_t>(count * per_group));
    };
    const auto from = part(values, traits.group);
    const auto to_words = part(words, traits.words(traits.group));
    const auto to_scales = part(scales, traits.scales);
    encode_weights(codes.format, from, to_words, to_scales);
    std::vector<float> decoded(from.size());
    decode_weights_on_host(codes.format, to_words, to_scales, decoded);
    losses[static_cast<size_t>(chunk)] = loss_of(from, decoded);
  });
  const Codes to = codes.part(first, elements);
  stream.write(to.words, words.data());
  dispatch_floating(to.scales.dtype(), [&]<class T>() {
    std::vector<T> kept(scales.size());
    std::ranges::transform(scales, kept.begin(), [](float scale) { return T(scale); });
    stream.write(to.scales, kept.data());
  });
  EncodingLoss all;
  for (const EncodingLoss& loss : losses) {
    all.squared_error += loss.squared_error;
    all.squared_values += loss.squared_values;
  }
  return all;
}

}  // namespace witan::kernels
