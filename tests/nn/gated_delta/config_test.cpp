#include "witan/nn/gated_delta/config.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

LinearAttentionConfig with(const std::string& freq) {
  LinearAttentionConfig config;
  config.experimental_attention_variant = "gated_delta_net";
  config.linear_attention_freq = freq;
  return config;
}

TEST(LinearAttentionConfig, PatternsChooseLayers) {
  using Layers = std::vector<bool>;
  EXPECT_EQ(LinearAttentionConfig().layers(3), (Layers{false, false, false}));
  EXPECT_EQ(with("4").layers(6), (Layers{true, true, true, false, true, true})) << "all but every fourth";
  EXPECT_EQ(with("([1]*2+[0])*2").layers(6), (Layers{true, true, false, true, true, false}));
}

TEST(LinearAttentionConfig, SpecsHaveTheKeysSizes) {
  LinearAttentionConfig config = with("2");
  config.linear_num_key_heads = 2;
  config.linear_num_value_heads = 6;
  config.linear_key_head_dim = 5;
  config.linear_value_head_dim = 7;
  config.linear_conv_kernel_dim = 3;
  config.linear_allow_neg_eigval = true;
  config.linear_norm_epsilon = 0.25;
  config.validate(4);
  const auto spec = std::get<GatedDeltaSpec>(config.spec(24));
  EXPECT_EQ(spec.heads().channels(), 2 * 2 * 5 + 6 * 7);
  EXPECT_EQ(spec.conv_kernel_dim, 3);
  EXPECT_TRUE(spec.negative_eigenvalues);
  EXPECT_EQ(spec.norm_epsilon, 0.25);
}

TEST(LinearAttentionConfig, ShortConvolutionsAreAsWideAsTheModel) {
  LinearAttentionConfig config = with("[1,0]");
  config.experimental_attention_variant = "short_convolution";
  config.linear_conv_kernel_dim = 3;
  config.linear_conv_bias = true;
  config.linear_num_key_heads = 5;  // has no effect
  config.validate(2);
  const auto spec = std::get<ShortConvolutionSpec>(config.spec(24));
  EXPECT_EQ(spec.channels, 24);
  EXPECT_EQ(spec.conv_kernel_dim, 3);
  EXPECT_TRUE(spec.bias);
}

TEST(LinearAttentionConfig, ContradictionsAreRefused) {
  const auto refusal = [](const LinearAttentionConfig& config) {
    return test::message_of<ConfigError>([&] { config.validate(4); });
  };
  LinearAttentionConfig alone;
  alone.linear_attention_freq = "4";
  EXPECT_EQ(refusal(alone),
            "linear_attention_freq = 4 chooses layers of linear attention, Mamba-2 or short convolutions, which "
            "experimental_attention_variant = none does not have: set it to gated_delta_net, kimi_delta, mamba2 or "
            "short_convolution, or linear_attention_freq to none");
  EXPECT_EQ(refusal(with("none")),
            "experimental_attention_variant = gated_delta_net needs linear_attention_freq, which says in which layers "
            "it is, as 4 for all but every fourth");
  EXPECT_EQ(refusal(with("1")),
            "linear_attention_freq = 1 leaves no layer for experimental_attention_variant = gated_delta_net; set both "
            "to none");
  LinearAttentionConfig uneven = with("4");
  uneven.linear_num_value_heads = 24;
  EXPECT_EQ(refusal(uneven), "linear_num_key_heads = 16 does not divide linear_num_value_heads = 24");
  LinearAttentionConfig kimi = with("4");
  kimi.experimental_attention_variant = "kimi_delta";
  EXPECT_EQ(refusal(kimi),
            "linear_num_key_heads = 16 is not linear_num_value_heads = 32: heads of Kimi Delta Attention have keys and "
            "values of their own");
}

}  // namespace
}  // namespace witan
