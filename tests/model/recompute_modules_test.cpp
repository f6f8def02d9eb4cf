#include <gtest/gtest.h>

#include "support/message_of.h"
#include "witan/base/error.h"
#include "witan/model/config.h"

namespace witan {
namespace {

RecomputeModules of(const std::string& granularity, const std::string& modules) {
  ModelConfig config;
  config.recompute_granularity = granularity;
  config.recompute_modules = modules;
  return read_recompute_modules(config);
}

TEST(RecomputeModules, ListsApplyOnlyToSelective) {
  const RecomputeModules usual = of("selective", "");
  EXPECT_TRUE(usual.layernorm && usual.mlp_act && usual.moe_act);
  EXPECT_FALSE(usual.mlp || usual.moe);
  const RecomputeModules listed = of("selective", "moe, layernorm,core_attn,shared_experts");
  EXPECT_TRUE(listed.moe && listed.layernorm && listed.shared_experts);
  EXPECT_FALSE(listed.mlp_act || listed.moe_act || listed.mlp);
  for (const char* granularity : {"none", "full"}) {
    const RecomputeModules none = of(granularity, "moe,mlp");
    EXPECT_FALSE(none.layernorm || none.mlp_act || none.moe_act || none.mlp || none.moe);
  }
  const RecomputeModules only_attention = of("selective", "core_attn");
  EXPECT_FALSE(only_attention.layernorm || only_attention.moe_act);
}

TEST(RecomputeModules, ErrorsNameUnknownModules) {
  EXPECT_EQ(test::message_of<ConfigError>([] { of("none", "moe,router"); }),
            "recompute_modules: \"router\" cannot be recomputed by itself; use some of layernorm, mlp_act, moe_act, "
            "shared_experts, mlp, moe, mla_up_proj and core_attn, or recompute_granularity = full");
}

TEST(RecomputeModules, OnlyLatentAttentionHasUpProjections) {
  EXPECT_NE(test::message_of<ConfigError>([] {
              of("selective", "mla_up_proj");
            }).find("mla_up_proj recomputes queries, keys and values that are made from latents"),
            std::string::npos);
  ModelConfig config;
  config.attention.multi_latent_attention = true;
  config.recompute_granularity = "selective";
  config.recompute_modules = "mla_up_proj,layernorm";
  EXPECT_TRUE(read_recompute_modules(config).mla_up_proj);
  config.recompute_granularity = "full";
  EXPECT_FALSE(read_recompute_modules(config).mla_up_proj);
}

}  // namespace
}  // namespace witan
