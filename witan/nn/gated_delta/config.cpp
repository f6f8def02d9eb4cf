#include "witan/nn/gated_delta/config.h"

#include <algorithm>

#include "witan/base/config/layer_pattern.h"
#include "witan/base/error.h"

namespace witan {

namespace {

constexpr const char* kWithout = "none";

}  // namespace

Fields LinearAttentionConfig::fields() {
  return {
      Field{"experimental_attention_variant", &experimental_attention_variant,
            "Mixer of the layers that linear_attention_freq chooses: Gated DeltaNet, as in Qwen3-Next and Qwen3.5, "
            "the same with a decay for each channel of a key (kimi_delta), as in Kimi Linear, Mamba-2, as in Granite "
            "4, or convolutions of a few tokens between gates, as in LFM2; or in all layers "
            "DeepSeek Sparse Attention (dsa), as in DeepSeek-V3.2 and GLM-5, or compressed attention (dsv4_hybrid), as "
            "in DeepSeek-V4"}
          .one_of({kWithout, "gated_delta_net", "kimi_delta", "mamba2", "short_convolution", "dsa", "dsv4_hybrid"}),
      Field{
          "linear_attention_freq", &linear_attention_freq,
          "Layers with the experimental_attention_variant: all but every N-th layer, or a list, 1 for a layer with it "
          "and 0 for attention, as in ([1]*3+[0])*2"},
      Field{"linear_conv_kernel_dim", &linear_conv_kernel_dim,
            "Taps of the causal convolution of queries, keys and values, or of short_convolution"}
          .between(2, 64),
      Field{"linear_conv_bias", &linear_conv_bias, "Give short_convolution's projections and its convolution biases"},
      Field{"linear_key_head_dim", &linear_key_head_dim, "Linear attention: channels of each query and key head"}
          .between(1, 256),
      Field{"linear_value_head_dim", &linear_value_head_dim, "Linear attention: channels of each value head"}.between(
          1, 1024),
      Field{"linear_num_key_heads", &linear_num_key_heads, "Linear attention: heads of queries and of keys"}.between(
          1, 1 << 16),
      Field{"linear_num_value_heads", &linear_num_value_heads,
            "Linear attention: heads of values; a multiple of linear_num_key_heads"}
          .between(1, 1 << 16),
      Field{"linear_allow_neg_eigval", &linear_allow_neg_eigval,
            "Linear attention: writing strengths up to 2, so that states may flip signs, instead of up to 1"},
      Field{"linear_norm_epsilon", &linear_norm_epsilon,
            "Linear attention: epsilon of the norm of outputs; 0: norm_epsilon"}
          .at_least(0),
  };
}

std::vector<bool> LinearAttentionConfig::layers(int64_t num_layers) const {
  if (!any()) return std::vector<bool>(static_cast<size_t>(num_layers), false);
  std::vector<bool> chosen = choose_layers("linear_attention_freq", linear_attention_freq, num_layers, OfPeriod::last);
  if (linear_attention_freq.find('[') == std::string::npos) chosen.flip();
  return chosen;
}

void LinearAttentionConfig::validate(int64_t num_layers) const {
  if (!any()) {
    require<ConfigError>(linear_attention_freq == kWithout, "linear_attention_freq = ", linear_attention_freq,
                         " chooses layers of linear attention, Mamba-2 or short convolutions, which "
                         "experimental_attention_variant = ",
                         experimental_attention_variant,
                         " does not have: set it to gated_delta_net, kimi_delta, mamba2 or short_convolution, or "
                         "linear_attention_freq to none");
    return;
  }
  require<ConfigError>(linear_attention_freq != kWithout,
                       "experimental_attention_variant = ", experimental_attention_variant,
                       " needs linear_attention_freq, which says in which layers it is, as 4 for all but every fourth");
  const std::vector<bool> chosen = layers(num_layers);
  require<ConfigError>(
      std::ranges::find(chosen, true) != chosen.end(), "linear_attention_freq = ", linear_attention_freq,
      " leaves no layer for experimental_attention_variant = ", experimental_attention_variant, "; set both to none");
  require<ConfigError>(!kimi_delta() || linear_num_value_heads == linear_num_key_heads,
                       "linear_num_key_heads = ", linear_num_key_heads,
                       " is not linear_num_value_heads = ", linear_num_value_heads,
                       ": heads of Kimi Delta Attention have keys and values of their own");
  require<ConfigError>(!delta() || linear_num_value_heads % linear_num_key_heads == 0,
                       "linear_num_key_heads = ", linear_num_key_heads,
                       " does not divide linear_num_value_heads = ", linear_num_value_heads);
}

MixerSpec LinearAttentionConfig::spec(int64_t hidden_size) const {
  if (short_convolution()) {
    ShortConvolutionSpec convolution;
    convolution.channels = hidden_size;
    convolution.conv_kernel_dim = linear_conv_kernel_dim;
    convolution.bias = linear_conv_bias;
    return convolution;
  }
  GatedDeltaSpec spec;
  spec.num_key_heads = linear_num_key_heads;
  spec.num_value_heads = linear_num_value_heads;
  spec.key_head_dim = linear_key_head_dim;
  spec.value_head_dim = linear_value_head_dim;
  spec.conv_kernel_dim = linear_conv_kernel_dim;
  spec.negative_eigenvalues = linear_allow_neg_eigval;
  spec.norm_epsilon = linear_norm_epsilon;
  spec.channel_decays = kimi_delta();
  return spec;
}

}  // namespace witan
