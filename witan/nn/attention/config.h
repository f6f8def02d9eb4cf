// What the attention of a model is made of, and what that comes to in each of its layers; keys as in Megatron-LM.
#pragma once

#include <string>
#include <vector>

#include "witan/base/fields.h"
#include "witan/kernels/rope.h"

namespace witan {

// The attention of one layer.
struct AttentionSpec {
  int64_t num_attention_heads = 0;  // H, of queries
  int64_t num_query_groups = 0;     // G, heads of keys and values; divides H
  int64_t qk_head_dim = 0;          // hd, channels of a head of queries and keys
  int64_t v_head_dim = 0;           // hd_v, channels of a head of values
  int64_t window = 0;               // positions that a token sees, its own included; 0: all up to its own
  kernels::RopeArgs rope = {};      // dims 0: no rotary positions
  double dropout = 0;               // of attention probabilities
};

struct AttentionConfig {
  int64_t num_attention_heads = 4;
  int64_t num_query_groups = 2;
  int64_t kv_channels = 0;           // 0: hidden_size / num_attention_heads
  int64_t v_head_dim = 0;            // 0: as kv_channels
  std::string window_size = "none";  // Megatron-LM's (left, right): "4096,0"
  std::string window_attn_skip_freq = "none";
  std::string position_embedding_type = "rope";
  int64_t max_position_embeddings = 0;  // rows of learned positions; 0: the run's seq_length
  double attention_dropout = 0;
  double rotary_base = 10000;
  double rotary_percent = 1.0;
  bool rotary_interleaved = false;
  std::string no_rope_freq = "none";

  Fields fields();
  void validate(int64_t hidden_size, int64_t num_layers) const;  // throws ConfigError
  // Layer by layer. Throws ConfigError for patterns that do not fit.
  std::vector<AttentionSpec> layers(int64_t hidden_size, int64_t num_layers) const;

  bool rotates() const { return position_embedding_type == "rope"; }
  bool learned_positions() const { return position_embedding_type == "learned_absolute"; }
  int64_t qk_head_dim(int64_t hidden_size) const {
    return kv_channels ? kv_channels : hidden_size / num_attention_heads;
  }
  int64_t value_head_dim(int64_t hidden_size) const { return v_head_dim ? v_head_dim : qk_head_dim(hidden_size); }
};

}  // namespace witan
