// The kinds of attention share this: heads of queries meet heads of keys, all up to their own position or those in a
// window, and both are turned by rotary positions.
#pragma once

#include "witan/nn/mixer/mixer_kind.h"

namespace witan {

struct AttentionSpec : public MixerKind {
  int64_t num_attention_heads = 0;  // H, of queries
  int64_t num_query_groups = 0;     // G, heads of keys and values; divides H
  int64_t qk_head_dim = 0;          // hd, channels of a head of queries and keys
  int64_t v_head_dim = 0;           // hd_v, channels of a head of values
  int64_t window = 0;               // positions that a token sees, its own included; 0: all up to its own
  kernels::RopeArgs rope = {};      // dims 0: no rotary positions
  double dropout = 0;               // of attention probabilities
  double scale = 0;                 // of logits; 0: 1 / sqrt(qk_head_dim)

  std::string describe() const override;
  double mixing_flops(int64_t seq_length) const override;
  double decoding_flops(int64_t position) const override;
  bool attends() const override { return true; }
  double kept_channels() const override;
  StateBytes state_bytes(const StateSize& size, DType dtype) const override;

  DividedSizes tensor_sizes() const override { return {{"num_attention_heads", num_attention_heads}}; }
  ContextUse context_use(ContextExchange exchange, int64_t tensor, int64_t context) const override;
  bool context_ranks_divide(int64_t tensor, int64_t context) const override;
  int64_t most_context_ranks(int64_t tensor) const override;
  std::string context_parts(int64_t tensor) const override;

  const kernels::RopeArgs* shared_rotation(bool generation) const override;
  int64_t logit_heads() const override { return num_attention_heads; }

 protected:
  // Channels that a token has in queries and their results, and in keys and values.
  int64_t query_channels() const { return num_attention_heads * (qk_head_dim + v_head_dim); }
  int64_t key_channels() const { return num_query_groups * (qk_head_dim + v_head_dim); }
  virtual std::string full_text() const = 0;  // "full attention"
};

// Whether `context` ranks, with the heads that `tensor` ranks leave them, can each attend with some of the heads: they
// divide the query heads, and divide the groups or are a multiple of them.
bool ranks_divide_heads(const AttentionSpec& spec, int64_t tensor, int64_t context);
// Whether they do. False for one rank.
bool exchanges_heads(ContextExchange exchange, const AttentionSpec& spec, int64_t tensor, int64_t context);

}  // namespace witan
