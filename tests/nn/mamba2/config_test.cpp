#include "witan/nn/mamba2/config.h"

#include <gtest/gtest.h>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

MambaConfig with_pattern(const std::string& pattern) {
  MambaConfig config;
  config.hybrid_override_pattern = pattern;
  return config;
}

TEST(MambaConfig, LettersAreLayers) {
  EXPECT_TRUE(MambaConfig().layers(3).empty());
  EXPECT_EQ(with_pattern("M*-E").layers(4),
            (std::vector{HybridLayer::mamba, HybridLayer::attention, HybridLayer::mlp, HybridLayer::moe}));
}

TEST(MambaConfig, SpecsHaveTheKeysSizes) {
  MambaConfig config = with_pattern("MM");
  config.mamba_head_dim = 4;
  config.mamba_state_dim = 5;
  config.mamba_num_groups = 2;
  config.mamba_conv_kernel_dim = 3;
  config.mamba_conv_bias = false;
  config.mamba_dt_min = 0.25;
  config.validate(12, 2);
  Mamba2Spec spec = config.spec(12);
  EXPECT_EQ(spec.num_heads, 6) << "twice the width";
  EXPECT_EQ(spec.heads().channels(), 6 * 4 + 2 * 2 * 5);
  EXPECT_EQ(spec.conv_kernel_dim, 3);
  EXPECT_FALSE(spec.conv_bias);
  EXPECT_EQ(spec.least_step, 0.25);
  config.mamba_num_heads = 8;
  EXPECT_EQ(config.spec(12).num_heads, 8);
}

TEST(MambaConfig, ContradictionsAreRefused) {
  const auto refusal = [](const MambaConfig& config) {
    return test::message_of<ConfigError>([&] { config.validate(64, 4); });
  };
  EXPECT_EQ(refusal(with_pattern("M*")),
            "hybrid_override_pattern = M* has 2 letters for num_layers = 4; give each layer "
            "one");
  EXPECT_EQ(refusal(with_pattern("M*-X")),
            "hybrid_override_pattern = M*-X: letters of layers are M (Mamba-2), * "
            "(attention), - (MLP) and E (experts)");
  MambaConfig uneven = with_pattern("M*-E");
  uneven.mamba_head_dim = 40;
  EXPECT_EQ(refusal(uneven),
            "mamba_head_dim = 40 does not divide 2 hidden_size = 128; set mamba_num_heads, or another "
            "mamba_head_dim");
  uneven.mamba_num_heads = 6;
  EXPECT_EQ(refusal(uneven),
            "mamba_num_groups = 8 does not divide the 6 heads of Mamba-2; set mamba_num_groups = 2, or a "
            "mamba_num_heads that it divides");
  MambaConfig small = with_pattern("M*-E");
  EXPECT_EQ(refusal(small),
            "mamba_num_groups = 8 does not divide the 2 heads of Mamba-2, 2 hidden_size / mamba_head_dim; set "
            "mamba_num_groups = 2, or a mamba_num_heads that it divides");
  EXPECT_EQ(refusal(with_pattern("")),
            "hybrid_override_pattern =  has 0 letters for num_layers = 4; give each layer one, or set "
            "hybrid_override_pattern = none for layers of attention and an MLP");
  uneven.hybrid_override_pattern = "*-E*";
  EXPECT_NO_THROW(uneven.validate(64, 4)) << "no layer has these sizes";
}

}  // namespace
}  // namespace witan
