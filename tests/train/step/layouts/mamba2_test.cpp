// Models with Mamba-2 in layers of one part, or before MLPs, train alike in every layout that divides them, over packed
// documents, and take the planned memory.
#include "witan/nn/mamba2/mamba2.h"

#include <gmock/gmock.h>

#include "planner/real_run.h"
#include "support/message_of.h"
#include "support/model_variants.h"
#include "train/step/layouts/one_rank.h"

namespace witan {
namespace {

using testing::expect_steps_of_one_rank;
using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

RunConfig packed_run() {
  RunConfig config = testing::divisible_config();
  config.model.vocab_size = 64;
  config.train.global_batch_size = 4;
  config.data.reset_attention_mask = config.data.reset_position_ids = true;
  return config;
}

RunConfig hybrid_recipe() {
  RunConfig config = packed_run();
  testing::add_hybrid_layers(config.model, "ME*-ME");
  config.model.moe.moe_router_score_function = "sigmoid";
  config.model.moe.moe_router_enable_expert_bias = true;
  config.model.moe.moe_shared_expert_intermediate_size = 16;
  config.model.moe.moe_latent_size = 8;
  return laid_out(config, {});
}

RunConfig granite_recipe() {
  RunConfig config = packed_run();
  testing::add_granite_layers(config.model);
  config.model.moe.moe_shared_expert_intermediate_size = 16;
  return laid_out(config, {});
}

TEST(Mamba2Layouts, EveryLayoutEqualsOneRankInFloat64) {
  const RunConfig config = hybrid_recipe();
  const Trajectory one = expect_steps_of_one_rank(config,
                                                  {{"replicate=2"},
                                                   {"shard=2", kFsdp},
                                                   {"tensor=4,expert_tensor=1"},
                                                   {"context=2"},
                                                   {.mesh = "context=4", .comm = "p2p"},
                                                   {"context=2,tensor=2,expert=2,expert_tensor=1"},
                                                   {"shard=2,context=2,pipeline=2,expert=2", kFsdp},
                                                   {"pipeline=2"},
                                                   {"shard=2,tensor=2,pipeline=2,expert=2,expert_tensor=1"}},
                                                  3);
  EXPECT_GT(std::ranges::min(one.norms), config.optimizer.clip_grad) << "nothing is clipped: nothing is shown";
}

TEST(Mamba2Layouts, LayersWithMlpsEqualOneRankInFloat64) {
  RunConfig config = granite_recipe();
  expect_steps_of_one_rank(config,
                           {{"shard=2", kFsdp},
                            {"tensor=4,expert_tensor=1"},
                            {.mesh = "context=4", .comm = "p2p"},
                            {"context=2,tensor=2,expert=2,expert_tensor=1"},
                            {"shard=2,context=2,pipeline=2,expert=2", kFsdp},
                            {"shard=2,tensor=2,pipeline=2,expert=2,expert_tensor=1"}},
                           3);
  config.model.mamba.mamba_num_groups = 1;  // as in Granite 4
  expect_steps_of_one_rank(config, {{"context=2"}, {"shard=2,expert=2"}}, 2);
  config.model.lora_rank = 3;
  config.model.moe.num_experts = 0;
  expect_steps_of_one_rank(config, {{"context=2"}, {"shard=2", kFsdp}, {"pipeline=2"}}, 2);
}

// Four ranks share groups in pairs, and recomputed layers exchange again.
TEST(Mamba2Layouts, RanksThatShareGroupsEqualOneRankInFloat64) {
  RunConfig config = hybrid_recipe();
  config.model.mamba.mamba_num_groups = 2;
  expect_steps_of_one_rank(config, {{"context=4"}, {"context=4,tensor=2,expert=2,expert_tensor=1"}}, 2);
  config.model.recompute_granularity = "full";
  expect_steps_of_one_rank(config, {{"context=4"}, {"shard=2,context=2", kFsdp}}, 2);
}

TEST(Mamba2Layouts, DeterministicRunsOfAContextLayoutRepeatBitwise) {
  RunConfig config = hybrid_recipe();
  config.parallel.deterministic = true;
  config = laid_out(config, {"context=2,tensor=2,expert=2,expert_tensor=1"});
  testing::expect_same_bits(run_engine(config, 3), run_engine(config, 3));
}

TEST(Mamba2Layouts, RecomputedLayersGiveTheSameBits) {
  RunConfig config = hybrid_recipe();
  const Trajectory kept = run_engine(config, 2);
  for (const char* granularity : {"full", "selective"}) {
    config.model.recompute_granularity = granularity;
    EXPECT_EQ(run_engine(config, 2).losses, kept.losses) << granularity;
  }
}

// In 16 bits decays and the norm stay float32, beside matrices of the same unit.
TEST(Mamba2Layouts, PlansAreKeptToTheByte) {
  for (const char* dtype : {"float64", "bfloat16"})
    for (const LaidOut& layout :
         {LaidOut{}, LaidOut{"tensor=2,expert=2,expert_tensor=1"}, LaidOut{"shard=2", kFsdp}, LaidOut{"context=4"},
          LaidOut{.mesh = "context=2,tensor=2,expert=2,expert_tensor=1", .comm = "p2p"}}) {
      SCOPED_TRACE(cat(dtype, ", ", described(layout)));
      for (RunConfig config : {hybrid_recipe(), granite_recipe()}) {
        config.model.dtype = dtype;
        config = laid_out(config, layout);
        config.train.sample_tokens = config.parallel.model_ranks() == 1 ? 4 : 0;
        testing::expect_kept(config, {.prompt_tokens = config.train.sample_tokens > 0 ? 3 : 0});
      }
    }
}

TEST(Mamba2Layouts, RanksThatDoNotDivideItAreRefused) {
  const auto refusal = [](const LaidOut& layout, int64_t groups) {
    RunConfig config = hybrid_recipe();
    config.model.mamba.mamba_num_groups = groups;
    return test::message_of<ConfigError>([&] { laid_out(config, layout).validate(); });
  };
  EXPECT_THAT(refusal({"tensor=4,expert_tensor=1"}, 2),
              ::testing::HasSubstr("mamba_num_groups = 2 is not divisible by tensor_model_parallel_size = 4"));
  RunConfig config = hybrid_recipe();
  config.model.mamba.mamba_num_heads = 12;
  config.model.mamba.mamba_num_groups = 3;
  EXPECT_EQ(test::message_of<ConfigError>([&] { laid_out(config, {"context=2"}).validate(); }),
            "context_parallel_size = 2: each rank computes an equal share of the heads of Mamba-2, and of their groups "
            "or one of them, which mamba_num_heads = 12 and mamba_num_groups = 3 do not allow; change these, or set "
            "context_parallel_size to 1, the nearest that works");
}

}  // namespace
}  // namespace witan
