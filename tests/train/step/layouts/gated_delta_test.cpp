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
                                                   {"pipeline=2"},
                                                   {"shard=2,tensor=2,pipeline=2,expert=2,expert_tensor=1"}},
                                                  3);
  EXPECT_GT(std::ranges::min(one.norms), config.optimizer.clip_grad)
      << "no step is clipped, so the test proves nothing";
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
    for (const LaidOut& layout : {LaidOut{}, LaidOut{"tensor=2,expert=2,expert_tensor=1"}, LaidOut{"shard=2", kFsdp}}) {
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
  EXPECT_EQ(refusal({"context=2"}, 4),
            "context_parallel_size = 2: layers of Gated DeltaNet need whole sequences, because their state passes from "
            "token to token; set context_parallel_size = 1");
}

}  // namespace
}  // namespace witan
