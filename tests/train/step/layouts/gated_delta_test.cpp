// Gated DeltaNet layers together with gated attention train equally in every layout that supports them, over packed
// documents and in the planned memory.
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

RunConfig recipe() {
  RunConfig config = testing::divisible_config();
  config.model.vocab_size = 64;
  config.train.global_batch_size = 4;
  config.data.reset_attention_mask = config.data.reset_position_ids = true;
  testing::add_linear_attention(config.model);
  return laid_out(config, {});
}

TEST(GatedDeltaLayouts, EveryLayoutEqualsOneRankInFloat64) {
  const RunConfig config = recipe();
  const Trajectory one = expect_steps_of_one_rank(config,
                                                  {{"replicate=2"},
                                                   {"shard=2", kFsdp},
                                                   {"tensor=2,expert_tensor=1"},
                                                   {"tensor=4,expert_tensor=1"},
                                                   {"context=2"},
                                                   {.mesh = "context=4", .comm = "p2p"},
                                                   {"context=2,tensor=2,expert=2,expert_tensor=1"},
                                                   {"shard=2,context=2,pipeline=2,expert=2", kFsdp},
                                                   {"pipeline=2"},
                                                   {"shard=2,tensor=2,pipeline=2,expert=2,expert_tensor=1"}},
                                                  3);
  EXPECT_GT(std::ranges::min(one.norms), config.optimizer.clip_grad)
      << "no step is clipped, so the test proves nothing";
}

TEST(GatedDeltaLayouts, KimiLinearEqualsOneRankInFloat64) {
  RunConfig config = recipe();
  config.model = testing::divisible_config().model;
  config.model.vocab_size = 64;
  testing::add_kimi_linear(config.model);
  testing::add_grouped_router(config.model, "[0,1]*2", 16);
  config = laid_out(config, {});
  expect_steps_of_one_rank(config,
                           {{"shard=2", kFsdp},
                            {"tensor=4,expert_tensor=1"},
                            {"context=4"},
                            {"context=2,tensor=2,expert=2,expert_tensor=1"},
                            {"shard=2,context=2,pipeline=2,expert=2", kFsdp},
                            {"shard=2,tensor=2,pipeline=2,expert=2,expert_tensor=1"}},
                           3);
  config.model.lora_rank = 3;
  expect_steps_of_one_rank(config, {{"tensor=2,expert=2,expert_tensor=1"}, {"context=2"}, {"shard=2", kFsdp}}, 2);
  config.model.lora_rank = 0;
  for (const char* dtype : {"float64", "bfloat16"})
    for (const LaidOut& layout :
         {LaidOut{}, LaidOut{"shard=2", kFsdp}, LaidOut{"context=2"}, LaidOut{"tensor=2,expert=2,expert_tensor=1"}}) {
      SCOPED_TRACE(cat(dtype, ", ", testing::described(layout)));
      config.model.dtype = dtype;
      RunConfig planned = laid_out(config, layout);
      planned.train.sample_tokens = planned.parallel.model_ranks() == 1 ? 4 : 0;
      testing::expect_kept(planned, {.prompt_tokens = planned.train.sample_tokens > 0 ? 3 : 0});
    }
}

// Four ranks share heads of keys in pairs, and recomputed layers exchange again.
TEST(GatedDeltaLayouts, RanksThatShareHeadsOfKeysEqualOneRankInFloat64) {
  RunConfig config = recipe();
  config.model.linear_attention.linear_num_key_heads = 2;
  expect_steps_of_one_rank(config, {{"context=4"}, {"context=4,tensor=2,expert=2,expert_tensor=1"}}, 2);
  config.model.recompute_granularity = "full";
  expect_steps_of_one_rank(config, {{"context=4"}, {"shard=2,context=2", kFsdp}}, 2);
}

// Layers without any attention leave cp_comm_type nothing to say.
TEST(GatedDeltaLayouts, ModelsWithoutAttentionDivideSequences) {
  RunConfig config = recipe();
  config.model.linear_attention.linear_attention_freq = "[1]*4";
  for (const char* comm : {"auto", "p2p", "a2a"})
    expect_steps_of_one_rank(config, {{.mesh = "context=4", .comm = comm}}, 2);
  EXPECT_EQ(resolve(laid_out(config, {"context=4"}), {})->parallel.cp_comm_type, "a2a");
}

TEST(GatedDeltaLayouts, DeterministicRunsOfAContextLayoutRepeatBitwise) {
  RunConfig config = recipe();
  config.parallel.deterministic = true;
  config = laid_out(config, {"context=2,tensor=2,expert=2,expert_tensor=1"});
  testing::expect_same_bits(run_engine(config, 3), run_engine(config, 3));
}

TEST(GatedDeltaLayouts, RecomputedLayersGiveTheSameBits) {
  RunConfig config = recipe();
  const Trajectory kept = run_engine(config, 2);
  config.model.recompute_granularity = "full";
  EXPECT_EQ(run_engine(config, 2).losses, kept.losses);
}

// In 16 bits, decays and the gated norm stay float32, in the same unit as 16-bit matrices.
TEST(GatedDeltaLayouts, PlansAreExact) {
  for (const char* dtype : {"float64", "bfloat16"})
    for (const LaidOut& layout :
         {LaidOut{}, LaidOut{"tensor=2,expert=2,expert_tensor=1"}, LaidOut{"shard=2", kFsdp}, LaidOut{"context=4"},
          LaidOut{.mesh = "context=2,tensor=2,expert=2,expert_tensor=1", .comm = "p2p"}}) {
      SCOPED_TRACE(cat(dtype, ", ", described(layout)));
      RunConfig config = recipe();
      config.model.dtype = dtype;
      config = laid_out(config, layout);
      config.train.sample_tokens = config.parallel.model_ranks() == 1 ? 4 : 0;
      testing::expect_kept(config, {.prompt_tokens = config.train.sample_tokens > 0 ? 3 : 0});
    }
}

TEST(GatedDeltaLayouts, RefusesRanksThatDoNotDivideIt) {
  const auto refusal = [](const LaidOut& layout, int64_t key_heads) {
    RunConfig config = recipe();
    config.model.linear_attention.linear_num_key_heads = key_heads;
    return test::message_of<ConfigError>([&] { laid_out(config, layout).validate(); });
  };
  EXPECT_THAT(refusal({"tensor=4,expert_tensor=1"}, 2),
              ::testing::HasSubstr("linear_num_key_heads = 2 is not divisible by tensor_model_parallel_size = 4"));
  const auto of_values = [](const LaidOut& layout) {
    RunConfig config = recipe();
    config.model.linear_attention.linear_num_key_heads = 6;
    config.model.linear_attention.linear_num_value_heads = 12;
    return test::message_of<ConfigError>([&] { laid_out(config, layout).validate(); });
  };
  EXPECT_EQ(
      of_values({"context=4"}),
      "context_parallel_size = 4: each rank computes an equal share of the heads of Gated DeltaNet, and of their "
      "groups or one of them, which linear_num_value_heads = 12 and linear_num_key_heads = 6 do not allow; change "
      "these, or set context_parallel_size to 2, the nearest that works");
  EXPECT_EQ(of_values({"context=2,tensor=2,expert_tensor=1"}),
            "context_parallel_size = 2: each rank computes an equal share of the heads of Gated DeltaNet, and of their "
            "groups or one of them, which linear_num_value_heads = 12 and linear_num_key_heads = 6 over "
            "tensor_model_parallel_size = 2 do not allow; change these, or set context_parallel_size to 1, the nearest "
            "that works");
}

}  // namespace
}  // namespace witan
