// Multi-head latent attention (nn/attention/latent.h).
#pragma once

#include "witan/nn/attention/attention_spec.h"

namespace witan {

// Each head has keys of its own: num_query_groups is num_attention_heads.
struct LatentSpec : public AttentionSpec {
  int64_t q_rank = 0;  // 0: queries are projected at once
  int64_t kv_rank = 0;
  int64_t nope_head_dim = 0, rope_head_dim = 0;  // channels without positions and with them; their sum is qk_head_dim

  std::unique_ptr<TokenMixer> make(const Builder& builder, const MixerModel& model,
                                   const ContextAxis& context) const override;
  MixerCounts parameters(const MixerModel& model) const override;
  double megatron_weights(const MixerModel& model, int64_t seq_length) const override;
  std::string_view key_against_lanes() const override { return "multi_latent_attention"; }

 protected:
  std::string full_text() const override { return "full latent attention"; }
};

}  // namespace witan
