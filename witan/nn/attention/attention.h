// Causal self-attention of one layer: the token mixers with heads whose queries meet keys.
#pragma once

#include "witan/nn/attention/attention_spec.h"
#include "witan/nn/attention/clipped_logits.h"
#include "witan/nn/attention/kv_cache.h"
#include "witan/nn/mixer/token_mixer.h"

namespace witan {

class Attention : public TokenMixer, public ClippedLogits {
 public:
  using TokenMixer::TokenMixer;

  ClippedLogits* clipped_logits() override { return this; }
};

}  // namespace witan
