// Training with operands in E4M3 and a scale per block: it learns as in 16 bits, all layouts agree, and the plan holds.
#include <gtest/gtest.h>

#include "support/message_of.h"
#include "train/step/fp8_support.h"

namespace witan {
namespace {

using test::message_of;
using testing::expect_near;
using testing::fp8_config;
using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

TEST(Fp8Training, LosesNothingOverTwentySteps) {
  for (const char* dtype : {"bfloat16", "float32"}) {
    SCOPED_TRACE(dtype);
    RunConfig wide = fp8_config(dtype);
    wide.model.fp8_format = "none";
    const Trajectory narrow = run_engine(fp8_config(dtype), 20), expected = run_engine(wide, 20);
    EXPECT_LT(narrow.losses.back(), 0.99 * narrow.losses.front());
    expect_near(narrow.losses, expected.losses, 5e-3);
    EXPECT_NEAR(narrow.norms.front(), expected.norms.front(), 2e-2 * expected.norms.front());
    EXPECT_NE(narrow.losses, expected.losses);
  }
}

TEST(Fp8Training, IsDeterministicOnAnyNumberOfThreads) {
  testing::expect_repeats(fp8_config(), 3);
}

// No scale depends on other ranks' rows: deterministic mode gives the same bits.
TEST(Fp8Training, DeterministicLayoutsHaveTheBitsOfOneRank) {
  for (const char* dtype : {"bfloat16", "float32"}) {
    RunConfig config = fp8_config(dtype);
    config.parallel.deterministic = true;
    const Trajectory one = run_engine(config, 4);
    for (const LaidOut& layout : std::vector<LaidOut>{{"replicate=2"},
                                                      {"replicate=4,expert=2"},
                                                      {"replicate=4,expert=4"},
                                                      {"shard=4,expert=2"},
                                                      {"shard=2,expert=2", kFsdp},
                                                      {"pipeline=2"},
                                                      {"replicate=2,pipeline=2,expert=2"}}) {
      SCOPED_TRACE(cat(dtype, ", ", described(layout)));
      const Trajectory several = run_engine(laid_out(config, layout), 4);
      EXPECT_EQ(one.losses, several.losses);
      EXPECT_EQ(one.norms, several.norms);
      EXPECT_TRUE(one.weights == several.weights);
    }
  }
}

// With sharded matrices or sums, rounding differs.
TEST(Fp8Training, OtherLayoutsAgreeUpToRounding) {
  const RunConfig config = fp8_config();
  const Trajectory one = run_engine(config, 4);
  for (const LaidOut& layout : std::vector<LaidOut>{{"replicate=2,expert=2"},
                                                    {"shard=4,expert=2", kFsdp},
                                                    {"context=2"},
                                                    {"tensor=2,expert_tensor=1"},
                                                    {"tensor=2,expert_tensor=2"},
                                                    {"replicate=2,expert_tensor=2"},
                                                    {"shard=2,tensor=2,expert=2", kFsdp},
                                                    {"context=2,tensor=2,pipeline=2"}}) {
    SCOPED_TRACE(described(layout));
    const RunConfig several = laid_out(config, layout);
    const Trajectory found = run_engine(several, 4);
    expect_near(found.losses, one.losses, 5e-3);
    expect_near(found.norms, one.norms, 5e-2);
    EXPECT_EQ(found.arena_high_water, make_plan(resolve(several, {})).arena_bytes());
  }
}

// Recomputation changes no bit, and everything takes the planned memory.
TEST(Fp8Training, RecomputesTheSameBitsWithinThePlan) {
  const Trajectory kept = run_engine(fp8_config(), 3);
  for (const char* granularity : {"none", "selective", "full"}) {
    SCOPED_TRACE(granularity);
    RunConfig config = fp8_config();
    config.model.recompute_granularity = granularity;
    const Trajectory found = run_engine(config, 3);
    EXPECT_EQ(kept.losses, found.losses);
    EXPECT_TRUE(kept.weights == found.weights);
    EXPECT_EQ(found.arena_high_water, make_plan(resolve(config, {})).arena_bytes());
  }
}

// Weights change only between steps: copies kept for all micro-batches of a step equal those made for each use. An
// evaluation between steps uses the updated weights.
TEST(Fp8Training, KeptWeightsChangeNoBit) {
  for (const LaidOut& layout :
       std::vector<LaidOut>{{}, {"shard=2,expert=2"}, {"pipeline=2"}, {"replicate=2,tensor=2,expert=2"}}) {
    SCOPED_TRACE(described(layout));
    RunConfig config = laid_out(fp8_config(), layout);
    config.train.global_batch_size = 8;
    const Trajectory each = run_engine(config, 4);
    config.model.fp8_keep_weights = true;
    const Trajectory kept = run_engine(config, 4);
    EXPECT_EQ(each.losses, kept.losses);
    EXPECT_EQ(each.norms, kept.norms);
    EXPECT_TRUE(each.weights == kept.weights);
    EXPECT_GT(kept.arena_high_water, each.arena_high_water);
    EXPECT_EQ(kept.arena_high_water, make_plan(resolve(config, {})).arena_bytes());
  }
}

TEST(Fp8Training, KeptWeightsAreQuantisedOncePerStep) {
  RunConfig config = fp8_config();
  config.train.global_batch_size = 4;  // micro-batches
  const auto bytes = [&](bool keep) {
    config.model.fp8_keep_weights = keep;
    const Plan plan = make_plan(resolve(config, {}));
    double sum = 0;
    for (const auto& [part, kernels] : plan.ranks[0].step)
      if (const auto found = kernels.find("fp8_quantise_weights"); found != kernels.end()) sum += found->second.bytes;
    return sum;
  };
  // 2 + 1 bytes per element for each of two passes of four micro-batches, or 2 + 1 + 1 once, plus scales.
  EXPECT_NEAR(bytes(false) / bytes(true), 4 * 2 * 3.0 / 4, 0.1);
}

void use_latents(RunConfig& config) {
  AttentionConfig& attention = config.model.attention;
  attention.multi_latent_attention = true;
  attention.q_lora_rank = attention.kv_lora_rank = 32;
  attention.latent_qk_head_dim = attention.qk_pos_emb_head_dim = attention.v_head_dim = 16;
  attention.num_query_groups = attention.num_attention_heads;
}

TEST(Fp8Training, RecomputedUpProjectionsHaveTheSameBits) {
  for (const bool keep : {false, true}) {
    RunConfig config = fp8_config();
    use_latents(config);
    config.model.fp8_keep_weights = keep;
    const Trajectory kept = run_engine(config, 3);
    config.model.recompute_granularity = "selective";
    config.model.recompute_modules = "mla_up_proj";
    const Trajectory again = run_engine(config, 3);
    EXPECT_EQ(kept.losses, again.losses);
    EXPECT_TRUE(kept.weights == again.weights);
    EXPECT_LT(again.arena_high_water, kept.arena_high_water);
    EXPECT_EQ(again.arena_high_water, make_plan(resolve(config, {})).arena_bytes());
  }
}

TEST(Fp8Training, WorksWithOtherFeaturesOfModels) {
  const std::vector<std::pair<const char*, std::function<void(RunConfig&)>>> changes = {
      {"dense", [](RunConfig& c) { c.model.moe.num_experts = c.model.moe.moe_shared_expert_intermediate_size = 0; }},
      {"biases", [](RunConfig& c) { c.model.attention.add_qkv_bias = c.model.moe.moe_expert_add_bias = true; }},
      {"lora", [](RunConfig& c) { c.model.lora_rank = 4; }},
      {"frozen experts", [](RunConfig& c) { c.model.freeze = "experts"; }},
      {"frozen below", [](RunConfig& c) { c.model.freeze = "embeddings,layers.0.*"; }},
      {"capacity", [](RunConfig& c) { c.model.moe.moe_expert_capacity_factor = 1; }},
      {"narrow gradients", [](RunConfig& c) { c.parallel.gradient_dtype = "bfloat16"; }},
      {"latent attention", use_latents},
      {"multi-token prediction", [](RunConfig& c) { c.model.mtp_num_layers = 1; }},
      {"latent experts", [](RunConfig& c) { c.model.moe.moe_latent_size = 32; }},
  };
  for (const auto& [name, change] : changes) {
    SCOPED_TRACE(name);
    RunConfig narrow = fp8_config();
    change(narrow);
    RunConfig wide = narrow;
    wide.model.fp8_format = "none";
    const Trajectory found = run_engine(narrow, 3), expected = run_engine(wide, 3);
    expect_near(found.losses, expected.losses, 5e-3);
    EXPECT_EQ(found.arena_high_water, make_plan(resolve(narrow, {})).arena_bytes());
  }
}

TEST(Fp8Training, RefusalsNameTheReason) {
  const auto refused = [](const std::function<void(RunConfig&)>& change, const Facts& facts = {}) {
    RunConfig config = fp8_config();
    change(config);
    return message_of<ConfigError>([&] { make_plan(resolve(config, facts)); });
  };
  EXPECT_EQ(refused([](RunConfig& c) { c.model.hidden_size = 72; }),
            "fp8_format: layers.0.attention.q_proj.weight is [72, 72] on a rank, and products in 8 bits take rows and "
            "columns that are multiples of 16; change the model's sizes or their number of ranks, or set fp8_format = "
            "\"none\"");
  EXPECT_NE(refused([](RunConfig& c) {
              c = laid_out(c, {"shard=2", kFsdp});
              c.model.fp8_keep_weights = true;
            }).find("set fp8_keep_weights = false"),
            std::string::npos);
  const auto on_gpu = [](RunConfig& c) { c.parallel.device = "cuda"; };
  EXPECT_EQ(refused(on_gpu, {.gpus = 1, .gpu_name = "NVIDIA A100", .gpu_multiplies_fp8 = false}),
            "fp8_format = e4m3 needs a GPU of compute capability 9.0 (H100, H200), whose instructions its kernels are "
            "made of, and a build for it; this one, NVIDIA A100, has none: set fp8_format = \"none\"");
  EXPECT_EQ(refused(
                [](RunConfig& c) {
                  c.parallel.device = "cuda";
                  c.model.dtype = "float32";
                },
                {.gpus = 1}),
            "fp8_format = e4m3 with dtype = float32: on GPUs products in 8 bits are of bfloat16; set dtype = "
            "\"bfloat16\"");
}

}  // namespace
}  // namespace witan
