// The configuration of layers with linear attention, with Megatron-LM's keys.
#pragma once

#include <string>
#include <vector>

#include "witan/base/config/fields.h"
#include "witan/nn/gated_delta/gated_delta_spec.h"

namespace witan {

struct LinearAttentionConfig {
  std::string experimental_attention_variant = "none";
  std::string linear_attention_freq = "none";
  int64_t linear_conv_kernel_dim = 4;
  int64_t linear_key_head_dim = 128, linear_value_head_dim = 128;
  int64_t linear_num_key_heads = 16, linear_num_value_heads = 32;

  Fields fields();
  void validate(int64_t num_layers) const;  // throws ConfigError

  bool any() const { return experimental_attention_variant == "gated_delta_net"; }
  // The layers with linear attention. Throws ConfigError for a pattern that does not fit num_layers.
  std::vector<bool> layers(int64_t num_layers) const;
  GatedDeltaSpec spec() const;
};

}  // namespace witan
