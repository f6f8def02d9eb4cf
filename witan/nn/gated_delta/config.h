// The configuration of layers with Gated DeltaNet, Mamba-2 or short convolutions, with Megatron-LM's keys where it has
// them.
#pragma once

#include <string>
#include <vector>

#include "witan/base/config/fields.h"
#include "witan/nn/mixer/mixer_spec.h"

namespace witan {

struct LinearAttentionConfig {
  std::string experimental_attention_variant = "none";
  std::string linear_attention_freq = "none";
  int64_t linear_conv_kernel_dim = 4;
  bool linear_conv_bias = false;
  int64_t linear_key_head_dim = 128, linear_value_head_dim = 128;
  int64_t linear_num_key_heads = 16, linear_num_value_heads = 32;
  bool linear_allow_neg_eigval = false;
  double linear_norm_epsilon = 0;

  Fields fields();
  void validate(int64_t num_layers) const;  // throws ConfigError

  bool any() const { return delta() || mamba2() || short_convolution(); }
  bool delta() const { return experimental_attention_variant == "gated_delta_net" || kimi_delta(); }
  bool kimi_delta() const { return experimental_attention_variant == "kimi_delta"; }
  bool mamba2() const { return experimental_attention_variant == "mamba2"; }
  bool short_convolution() const { return experimental_attention_variant == "short_convolution"; }
  // The layers with this variant. Throws ConfigError for a pattern that does not fit num_layers.
  std::vector<bool> layers(int64_t num_layers) const;
  // Returns the mixer of these layers, unless that is Mamba-2, whose sizes are MambaConfig's.
  MixerSpec spec(int64_t hidden_size) const;
};

}  // namespace witan
