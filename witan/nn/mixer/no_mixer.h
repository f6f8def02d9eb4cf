// A layer without a token mixer: its MLP alone.
#pragma once

#include "witan/nn/mixer/mixer_kind.h"

namespace witan {

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

}  // namespace witan
