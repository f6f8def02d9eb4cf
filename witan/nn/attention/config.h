// The configuration of a model's attention, with Megatron-LM's keys, and the mixers of its layers that follow from it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "witan/base/config/fields.h"
#include "witan/nn/mixer/mixer_spec.h"

namespace witan {

// Reads the value of a key, "[1.0,1.5]" or "none". Throws ConfigError unless it is a list of positive numbers.
std::vector<double> read_rope_factors(const char* key, const std::string& list);

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
  bool rotary_proportional = false;
  std::string no_rope_freq = "none";
  std::string rope_scaling_type = "none";
  double rotary_scaling_factor = 1;
  int64_t original_max_position_embeddings = 4096;
  double beta_fast = 32, beta_slow = 1;
  double mscale = 1, mscale_all_dim = 0;
  double rope_low_freq_factor = 1, rope_high_freq_factor = 4;
  std::string rope_short_factors = "none", rope_long_factors = "none";  // of longrope, as "[1.0,1.5]"
  double rope_attention_factor = 0;                                     // of longrope; 0: from the scaling factor
  bool rope_long_context = false;
  int64_t window_kv_channels = 0, window_num_query_groups = 0;  // of layers with a window; 0: those of all
  double window_rotary_base = 0, window_rotary_percent = 0;     // of layers with a window; 0: rotary_base, _percent
  bool window_rope_scaling = true;
  bool rotary_half_truncated = false;
  bool qk_layernorm = false;
  bool qk_layernorm_full_width = false;
  bool qk_layernorm_after_rope = false;
  bool qk_l2_norm = false;
  bool v_l2_norm = false;
  bool attention_k_eq_v = false;  // in layers without a window
  double clip_qkv = 0;
  double softmax_scale = 0;
  bool scale_attn_by_inverse_layer_idx = false;
  std::string softmax_type = "vanilla";
  bool attention_output_gate = false;
  bool add_qkv_bias = false, add_attention_bias = false;
  std::string no_attention_freq = "none";
  bool multi_latent_attention = false;
  int64_t q_lora_rank = 0, kv_lora_rank = 512;
  int64_t latent_qk_head_dim = 128, qk_pos_emb_head_dim = 64;  // keys qk_head_dim and qk_pos_emb_head_dim

  Fields fields();
  void validate(int64_t hidden_size, int64_t num_layers) const;  // throws ConfigError
  // The mixer of each layer. Throws ConfigError for layer patterns that do not fit num_layers.
  std::vector<MixerSpec> layers(int64_t hidden_size, int64_t num_layers) const;
  // This configuration with the heads and rotary positions of layers with a window.
  AttentionConfig of_windowed_layers() const;

  bool rotates() const { return position_embedding_type == "rope"; }
  // The longest sequence that has positions; none: no limit.
  std::optional<int64_t> most_positions() const;
  const char* most_positions_key() const {
    return learned_positions() ? "max_position_embeddings" : "original_max_position_embeddings";
  }
  // The reason for that limit, to follow the number in a message.
  const char* most_positions_reason() const;
  bool learned_positions() const { return position_embedding_type == "learned_absolute"; }
  int64_t qk_head_dim(int64_t hidden_size) const {
    return kv_channels ? kv_channels : hidden_size / num_attention_heads;
  }
  int64_t value_head_dim(int64_t hidden_size) const {
    if (v_head_dim) return v_head_dim;
    return multi_latent_attention ? latent_qk_head_dim : qk_head_dim(hidden_size);
  }
};

}  // namespace witan
