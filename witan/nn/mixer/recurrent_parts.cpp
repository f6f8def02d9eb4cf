#include "witan/nn/mixer/recurrent_parts.h"

#include <algorithm>
#include <cmath>

#include "witan/kernels/linear_attention/short_convolution.h"
#include "witan/ops/linear/linear.h"
#include "witan/ops/linear_attention/gated_delta.h"
#include "witan/ops/shape/shape.h"

namespace witan {

Builder unquantised(const Builder& builder) {
  Builder wide = builder;
  wide.fp8 = nullptr;
  return wide;
}

Var project_together(Tape& tape, const Var& x, std::initializer_list<Linear*> all, const Randomness& randomness) {
  if (std::ranges::none_of(
          all, [](const Linear* of) { return of->multiplies_in_fp8() || of->has_adapters() || of->has_bias(); })) {
    std::vector<Var> weights;
    for (Linear* of : all) weights.push_back(tape.parameter(of->weight()));
    return ops::joined_linear(tape, x, weights);
  }
  Var joined;
  for (Linear* of : all) {
    const Var y = of->forward(tape, x, randomness);
    joined = joined.defined() ? ops::join_columns(tape, joined, y) : y;
  }
  return joined;
}

Var ShortConvolutions::forward(Tape& tape, const Var& x, const Tensor& sequence_ids,
                               const WholeSequences& whole) const {
  std::vector<Var> taps, biases;
  for (const Part& part : parts_) {
    taps.push_back(whole.own_rows(tape, *part.taps, part.heads));
    if (part.bias != nullptr) biases.push_back(whole.own_rows(tape, *part.bias, part.heads));
  }
  return ops::short_convolution(tape, x, taps, biases, sequence_ids);
}

Tensor ShortConvolutions::decode(Tape& tape, const Tensor& x, const Tensor& tails,
                                 const kernels::CacheTokens& tokens) const {
  const Tensor y = tape.stream().empty_like(x);
  const Shape rows{x.size(1), x.size(2)};
  int64_t first = 0;
  for (const Part& part : parts_) {
    const kernels::ConvolutionFilters filters{tape.parameter(*part.taps).value(),
                                              part.bias != nullptr ? tape.parameter(*part.bias).value() : Tensor()};
    const int64_t count = filters.w.size(0);
    const auto channels = [&](const Tensor& of) { return of.reshape(rows).narrow(1, first, count); };
    kernels::short_convolution_decode(tape.stream(), channels(y), tails.narrow(2, first, count), channels(x), filters,
                                      tokens);
    first += count;
  }
  return y;
}

Initialization ShortConvolutions::init(const Builder& builder, int64_t taps) {
  if (builder.torch) return Builder::torch_uniform(taps);
  return {.std = 1 / std::sqrt(3 * static_cast<double>(taps))};
}

}  // namespace witan
