#include "witan/nn/mamba2/config.h"

#include <numeric>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {

Fields MambaConfig::fields() {
  return {
      Field{"hybrid_override_pattern", &hybrid_override_pattern,
            "Layers of one part each, a letter for each: M Mamba-2, * attention, - a dense MLP, E experts, as in "
            "MEM*E; none: every layer has attention, or what replaces it, and an MLP"},
      Field{"mamba_num_heads", &mamba_num_heads,
            "Mamba-2: number of heads; a multiple of mamba_num_groups (0: 2 hidden_size / mamba_head_dim)"}
          .between(0, 1 << 16),
      Field{"mamba_head_dim", &mamba_head_dim, "Mamba-2: channels of each head"}.between(1, 1024),
      Field{"mamba_state_dim", &mamba_state_dim, "Mamba-2: size of the state of each channel"}.between(1, 256),
      Field{"mamba_num_groups", &mamba_num_groups,
            "Mamba-2: groups of heads that share B and C, and groups of channels that are normalised by themselves"}
          .between(1, 1 << 16),
      Field{"mamba_conv_kernel_dim", &mamba_conv_kernel_dim, "Mamba-2: taps of the causal convolution of x, B and C"}
          .between(2, 64),
      Field{"mamba_conv_bias", &mamba_conv_bias, "Mamba-2: give the convolution a bias"},
      Field{"mamba_dt_min", &mamba_dt_min, "Mamba-2: smallest step of a head; smaller ones are raised to it"}.at_least(
          0),
  };
}

std::vector<HybridLayer> MambaConfig::layers(int64_t num_layers) const {
  if (!any()) return {};
  const std::string& pattern = hybrid_override_pattern;
  require<ConfigError>(pattern.find_first_not_of("M*-E") == std::string::npos,
                       "hybrid_override_pattern = ", clipped(pattern),
                       ": letters of layers are M (Mamba-2), * (attention), - (MLP) and E (experts)");
  require<ConfigError>(
      static_cast<int64_t>(pattern.size()) == num_layers, "hybrid_override_pattern = ", clipped(pattern), " has ",
      pattern.size(), " letters for num_layers = ", num_layers, "; give each layer one",
      pattern.empty() ? ", or set hybrid_override_pattern = none for layers of attention and an MLP" : "");
  std::vector<HybridLayer> all;
  for (const char letter : pattern) all.push_back(static_cast<HybridLayer>(letter));
  return all;
}

void MambaConfig::validate(int64_t hidden_size, int64_t num_layers) const {
  layers(num_layers);  // throws for a pattern that does not fit
  if (has_mamba()) validate_sizes(hidden_size);
}

void MambaConfig::validate_sizes(int64_t hidden_size) const {
  require<ConfigError>(mamba_num_heads > 0 || 2 * hidden_size % mamba_head_dim == 0,
                       "mamba_head_dim = ", mamba_head_dim, " does not divide 2 hidden_size = ", 2 * hidden_size,
                       "; set mamba_num_heads, or another mamba_head_dim");
  const int64_t heads = spec(hidden_size).num_heads;
  require<ConfigError>(heads % mamba_num_groups == 0, "mamba_num_groups = ", mamba_num_groups, " does not divide the ",
                       heads, " heads of Mamba-2", mamba_num_heads > 0 ? "" : ", 2 hidden_size / mamba_head_dim",
                       "; set mamba_num_groups = ", std::gcd(heads, mamba_num_groups),
                       ", or a mamba_num_heads that it divides");
}

Mamba2Spec MambaConfig::spec(int64_t hidden_size) const {
  Mamba2Spec spec;
  spec.num_heads = mamba_num_heads > 0 ? mamba_num_heads : 2 * hidden_size / mamba_head_dim;
  spec.num_groups = mamba_num_groups;
  spec.head_dim = mamba_head_dim;
  spec.state_dim = mamba_state_dim;
  spec.conv_kernel_dim = mamba_conv_kernel_dim;
  spec.conv_bias = mamba_conv_bias;
  spec.least_step = mamba_dt_min;
  return spec;
}

}  // namespace witan
