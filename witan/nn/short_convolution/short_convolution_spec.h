// Gated short convolutions as a kind of token mixer (nn/short_convolution/short_convolution.h): their sizes, and how
// ranks divide them.
#pragma once

#include "witan/nn/mixer/mixer_kind.h"

namespace witan {

struct ShortConvolutionSpec : public MixerKind {
  int64_t channels = 0;         // C, the width of the residual stream
  int64_t conv_kernel_dim = 0;  // W, taps of the convolution, at least 2
  bool bias = false;            // of the projections and of the convolution

  std::string describe() const override { return "short convolution"; }
  const char* name() const override { return "short_convolution"; }
  std::unique_ptr<TokenMixer> make(const Builder& builder, const MixerModel& model,
                                   const ContextAxis& context) const override;
  MixerCounts parameters(const MixerModel& model) const override;
  double mixing_flops(int64_t seq_length) const override;
  double decoding_flops(int64_t position) const override;
  double kept_channels() const override;
  // The last inputs of the convolution; the same for a sequence of any length.
  StateBytes state_bytes(const StateSize& size, DType dtype) const override;

  DividedSizes tensor_sizes() const override { return {{"hidden_size", channels}}; }
  std::string_view key_against_lanes() const override { return "experimental_attention_variant"; }
  // The last inputs before a rank's chunks are too few to count.
  ContextUse context_use(ContextExchange /*exchange*/, int64_t /*tensor*/, int64_t /*context*/) const override {
    return {};
  }
};

}  // namespace witan
