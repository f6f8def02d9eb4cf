// Attention of heads with projections of their own (nn/attention/grouped_query.h): multi-head, grouped-query and
// multi-query attention.
#pragma once

#include "witan/nn/attention/attention_spec.h"

namespace witan {

enum class QkNorm : uint8_t { none, per_head, full_width, l2 };  // of queries and keys, before they rotate

struct MultiHeadSpec : public AttentionSpec {
  QkNorm qk_norm = QkNorm::none;
  double clip_qkv = 0;                         // bound of queries, keys and values, either way; 0: none
  bool sinks = false;                          // a learned logit of each head that takes probability and adds nothing
  bool qkv_bias = false, output_bias = false;  // of projections, also where other linear layers have none
  int64_t value_table = 0;   // value embedding, from 1 on, whose rows of tokens are added to their values; 0: none
  bool value_scale = false;  // values, and such rows, have a learned factor each

  // Queries and keys are normalised or bounded before they rotate.
  bool prepares_heads() const { return qk_norm != QkNorm::none || clip_qkv > 0; }

  std::string describe() const override;
  std::unique_ptr<TokenMixer> make(const Builder& builder, const MixerModel& model,
                                   const ContextAxis& context) const override;
  MixerCounts parameters(const MixerModel& model) const override;
  double megatron_weights(const MixerModel& model, int64_t seq_length) const override;
  double kept_channels() const override;
  // Ranks shard the query groups, or several ranks share a group and shard its channels.
  std::string tensor_refusal(int64_t ranks) const override;
  bool sums_over_tensor_ranks() const override { return qk_norm == QkNorm::full_width; }
  std::string_view key_against_lanes() const override { return ""; }
  std::string context_parts(int64_t tensor) const override;
  // Heads that are prepared rotate by themselves, but in generation.
  const kernels::RopeArgs* shared_rotation(bool generation) const override;
  int64_t value_embedding() const override { return value_table; }

 protected:
  std::string full_text() const override { return "full attention"; }
};

}  // namespace witan
