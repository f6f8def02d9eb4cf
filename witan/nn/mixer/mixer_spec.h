// The token mixer of one layer. This variant is the only list of kinds.
#pragma once

#include <memory>
#include <variant>

#include "witan/nn/attention/attention_spec.h"
#include "witan/nn/compressed_attention/compressed_spec.h"
#include "witan/nn/gated_delta/gated_delta_spec.h"
#include "witan/nn/mamba2/mamba2_spec.h"
#include "witan/nn/mixer/mixer_kind.h"
#include "witan/nn/short_convolution/short_convolution_spec.h"

namespace witan {

// The spec of a layer that has an MLP only.
class NoMixer : public MixerKind {
 public:
  std::string describe() const override { return "no attention"; }
  std::unique_ptr<TokenMixer> make(const Builder& builder, const MixerModel& model,
                                   const ContextAxis& context) const override;
  MixerCounts parameters(const MixerModel& /*model*/) const override { return {}; }
  double mixing_flops(int64_t /*seq_length*/) const override { return 0; }
  double decoding_flops(int64_t /*position*/) const override { return 0; }
  double kept_channels() const override { return 0; }
  StateBytes state_bytes(const StateSize& /*size*/, DType /*dtype*/) const override { return {}; }
  std::string_view key_against_lanes() const override { return "no_attention_freq"; }
  ContextUse context_use(ContextExchange /*exchange*/, int64_t /*tensor*/, int64_t /*context*/) const override {
    return {};
  }
};

// A kind that a program defines outside of this library.
struct CustomMixer {
  std::shared_ptr<const MixerKind> kind;  // never null
};

using MixerSpec = std::variant<MultiHeadSpec, LatentSpec, CompressedSpec, GatedDeltaSpec, Mamba2Spec,
                               ShortConvolutionSpec, NoMixer, CustomMixer>;

const MixerKind& mixer_kind(const MixerSpec& spec);

// Null if the layer's mixer is not attention.
const AttentionSpec* attention_of(const MixerSpec& spec);
// Positions that a token attends to, its own included; 0: all up to its own, or the mixer has no window.
int64_t window_of(const MixerSpec& spec);
// The rotary positions of queries and keys; dims 0: none.
kernels::RopeArgs rotation_of(const MixerSpec& spec);

}  // namespace witan
