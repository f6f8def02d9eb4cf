#include "witan/generate/cache_options.h"

#include "support/message_of.h"
#include "support/model_variants.h"

namespace witan {
namespace {

ModelConfig latent_model() {
  ModelConfig config;
  config.vocab_size = 50;
  testing::add_latent_attention(config, {.q_rank = 7, .kv_rank = 10, .head = 6, .rotated_head = 4, .value_head = 5});
  return config;
}

std::string refusal(const CacheOptions& options, const ModelConfig& model, const CacheUse& use = {}) {
  return test::message_of<ConfigError>([&] { resolve_cache(options, model, use); });
}

TEST(CacheOptions, AutoCachesLatentsOnGpusThatNeedNotRepeatBits) {
  const ModelConfig model = latent_model();  // 4 heads of 10 and 5 channels, latents of 14
  EXPECT_EQ(resolve_cache({}, model, {}), CacheFormat{});
  EXPECT_EQ(resolve_cache({}, model, {.gpu = true}), (CacheFormat{.latents = true}));
  EXPECT_EQ(resolve_cache({}, model, {.repeatable = true, .gpu = true}), CacheFormat{});
  EXPECT_EQ(resolve_cache({}, model, {.gpu = true, .tensor_ranks = 4}), (CacheFormat{.latents = true}));
  ModelConfig wide = model;
  wide.attention.kv_lora_rank = 30;
  EXPECT_EQ(resolve_cache({}, wide, {.gpu = true}), (CacheFormat{.latents = true}));
  EXPECT_EQ(resolve_cache({}, wide, {.gpu = true, .tensor_ranks = 4}), CacheFormat{}) << "15 channels of one head";
  ModelConfig grouped;
  grouped.vocab_size = 50;
  EXPECT_EQ(resolve_cache({}, grouped, {.gpu = true}), CacheFormat{});
}

TEST(CacheOptions, AreTakenWhereTheyAreGiven) {
  EXPECT_EQ(resolve_cache({.cache_mla_latents = "true"}, latent_model(), {}), (CacheFormat{.latents = true}));
  EXPECT_EQ(resolve_cache({.cache_mla_latents = "false"}, latent_model(), {.gpu = true}), CacheFormat{});
  EXPECT_EQ(resolve_cache({.kv_cache_dtype = "fp8_e4m3"}, latent_model(), {}), (CacheFormat{.fp8 = true}));
  EXPECT_EQ(resolve_cache({.kv_cache_dtype = "fp8_e4m3"}, latent_model(), {.gpu = true}),
            (CacheFormat{.latents = true, .fp8 = true}));
}

TEST(CacheOptions, ThatRepeatableTextsRuleOutAreRefused) {
  const std::string why =
      " changes the bits of tokens, which batch_invariant_mode and --deterministic keep equal to the training "
      "forward's; leave one of them out";
  EXPECT_EQ(refusal({.kv_cache_dtype = "fp8_e4m3"}, latent_model(), {.repeatable = true}),
            "kv_cache_dtype = fp8_e4m3" + why);
  EXPECT_EQ(refusal({.cache_mla_latents = "true"}, latent_model(), {.repeatable = true}),
            "cache_mla_latents = true" + why);
}

TEST(CacheOptions, ThatTheModelRulesOutAreRefused) {
  ModelConfig grouped;
  grouped.vocab_size = 50;
  EXPECT_EQ(refusal({.cache_mla_latents = "true"}, grouped),
            "cache_mla_latents = true: the model has no multi-head latent attention; set it to auto");
  ModelConfig recurrent = grouped;
  recurrent.attention.no_attention_freq = "[1,1,1,1]";
  EXPECT_EQ(refusal({.kv_cache_dtype = "fp8_e4m3"}, recurrent),
            "kv_cache_dtype = fp8_e4m3: no layer of the model has a cache of all keys and values; set it to auto");

  ModelConfig adapted = latent_model();
  adapted.lora_rank = 2;
  adapted.lora_target_modules = "kv_b_proj";
  EXPECT_EQ(
      refusal({.cache_mla_latents = "true"}, adapted),
      "cache_mla_latents = true: layer 0: adapters of kv_b_proj (lora_target_modules) multiply each latent, which "
      "is not expanded then: merge them by an export; set it to auto");
  EXPECT_EQ(resolve_cache({}, adapted, {.gpu = true}), CacheFormat{});

  ModelConfig eight = latent_model();
  eight.fp8_format = "e4m3";
  EXPECT_EQ(refusal({.cache_mla_latents = "true"}, eight),
            "cache_mla_latents = true: fp8_format = e4m3 multiplies kv_b_proj in 8 bits, as decoding from latents does "
            "not; set it to auto");

  ModelConfig sparse = latent_model();
  testing::add_sparse_attention(sparse);
  for (const CacheOptions& options : {CacheOptions{.kv_cache_dtype = "fp8_e4m3"}, {.cache_mla_latents = "true"}})
    EXPECT_NE(refusal(options, sparse).find("layer 0: attention to chosen keys"), std::string::npos);
  EXPECT_EQ(resolve_cache({}, sparse, {.gpu = true}), CacheFormat{});
}

}  // namespace
}  // namespace witan
