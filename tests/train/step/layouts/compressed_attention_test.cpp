// Models with DeepSeek-V4's compressed attention and parallel residual streams train alike in every layout that divides
// them, over packed documents, and take the planned memory.
#include "witan/nn/compressed_attention/compressed_attention.h"

#include <gmock/gmock.h>

#include "planner/real_run.h"
#include "support/message_of.h"
#include "support/model_variants.h"
#include "train/step/layouts/one_rank.h"
#include "witan/model/frozen.h"

namespace witan {
namespace {

using testing::expect_steps_of_one_rank;
using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

RunConfig compressed_recipe() {
  RunConfig config = testing::divisible_config();
  config.model.vocab_size = 64;
  config.train.global_batch_size = 4;
  config.data.reset_attention_mask = config.data.reset_position_ids = true;
  testing::add_compressed_attention(config.model);
  testing::add_residual_streams(config.model);
  config.model.moe.moe_router_score_function = "sqrtsoftplus";
  config.model.moe.moe_router_enable_expert_bias = true;
  config.model.moe.moe_n_hash_layers = 1;
  return laid_out(config, {});
}

TEST(CompressedLayouts, EveryLayoutEqualsOneRankInFloat64) {
  const RunConfig config = compressed_recipe();
  const Trajectory one = expect_steps_of_one_rank(
      config,
      {{"replicate=2"}, {"shard=2", kFsdp}, {"pipeline=2"}, {"shard=2,expert=2"}, {"shard=2,pipeline=2,expert=2"}}, 3);
  EXPECT_GT(std::ranges::min(one.norms), config.optimizer.clip_grad) << "nothing is clipped: nothing is shown";
}

TEST(CompressedLayouts, RecomputedLayersGiveTheSameBits) {
  RunConfig config = compressed_recipe();
  const Trajectory kept = run_engine(config, 2);
  for (const char* granularity : {"full", "selective"}) {
    config.model.recompute_granularity = granularity;
    EXPECT_EQ(run_engine(config, 2).losses, kept.losses) << granularity;
  }
}

TEST(CompressedLayouts, PlansAreKeptToTheByte) {
  for (const char* dtype : {"float64", "bfloat16"})
    for (const LaidOut& layout : {LaidOut{}, LaidOut{"shard=2,expert=2"}, LaidOut{"shard=2", kFsdp}}) {
      SCOPED_TRACE(cat(dtype, ", ", described(layout)));
      RunConfig config = compressed_recipe();
      config.model.dtype = dtype;
      config = laid_out(config, layout);
      config.train.sample_tokens = config.parallel.model_ranks() == 1 ? 4 : 0;
      testing::expect_kept(config, {.prompt_tokens = config.train.sample_tokens > 0 ? 3 : 0});
    }
}

TEST(CompressedLayouts, RanksThatWouldDivideItAreRefused) {
  const auto refusal = [](const LaidOut& layout) {
    RunConfig config = compressed_recipe();
    config.model.attention.num_attention_heads = 8;
    return test::message_of<ConfigError>([&] { laid_out(config, layout).validate(); });
  };
  EXPECT_THAT(refusal({"tensor=2,expert_tensor=1"}),
              ::testing::HasSubstr("tensor_model_parallel_size = 2: heads of compressed attention share a key"));
  EXPECT_EQ(refusal({"context=2"}),
            "context_parallel_size = 2: layers of compressed attention need whole sequences, because entries are made "
            "of neighbouring tokens; set context_parallel_size to 1, the nearest that works");
}

// Indexers choose, and are not trained.
TEST(CompressedLayouts, IndexersStayAsTheyAre) {
  const RunConfig config = compressed_recipe();
  const Freeze freeze(config.model);
  ParameterSpec spec;
  spec.name = "layers.0.attention.indexer.compressor.kv_proj.weight";
  EXPECT_TRUE(freeze.takes(spec));
  spec.name = "layers.0.attention.compressor.kv_proj.weight";
  EXPECT_FALSE(freeze.takes(spec));
}

}  // namespace
}  // namespace witan
