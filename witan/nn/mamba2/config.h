// The configuration of layers of Mamba-2, and of models whose layers are one mixer or one MLP each, with Megatron-LM's
// keys.
#pragma once

#include <string>
#include <vector>

#include "witan/base/config/fields.h"
#include "witan/nn/mamba2/mamba2_spec.h"

namespace witan {

// The only part of a layer of such a model.
enum class HybridLayer : char { mamba = 'M', attention = '*', mlp = '-', moe = 'E' };

struct MambaConfig {
  std::string hybrid_override_pattern = "none";
  int64_t mamba_num_heads = 0;  // 0: twice the width over mamba_head_dim
  int64_t mamba_head_dim = 64, mamba_state_dim = 128, mamba_num_groups = 8;
  int64_t mamba_conv_kernel_dim = 4;
  bool mamba_conv_bias = true;
  double mamba_dt_min = 0;

  Fields fields();
  void validate(int64_t hidden_size, int64_t num_layers) const;  // throws ConfigError
  void validate_sizes(int64_t hidden_size) const;                // of layers of Mamba-2; throws ConfigError

  // Whether each layer is one part.
  bool any() const { return hybrid_override_pattern != "none"; }
  // Whether one of these parts is Mamba-2.
  bool has_mamba() const { return any() && hybrid_override_pattern.find('M') != std::string::npos; }
  // Each layer's part; empty unless any(). Throws ConfigError for a pattern that does not fit num_layers.
  std::vector<HybridLayer> layers(int64_t num_layers) const;
  Mamba2Spec spec(int64_t hidden_size) const;
};

}  // namespace witan
