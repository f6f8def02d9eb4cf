// Layers of short convolutions beside attention, and OLMo Hybrid's beside norms of outputs, train alike in every layout
// that divides them, over packed documents, and take the planned memory.
#include <gmock/gmock.h>

#include "planner/real_run.h"
#include "support/message_of.h"
#include "support/model_variants.h"
#include "train/step/layouts/one_rank.h"

namespace witan {
namespace {

using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;

RunConfig packed_recipe(void (*add)(ModelConfig&)) {
  RunConfig config = testing::divisible_config();
  config.model.vocab_size = 64;
  config.train.global_batch_size = 4;
  config.data.reset_attention_mask = config.data.reset_position_ids = true;
  add(config.model);
  return laid_out(config, {});
}

TEST(ShortConvolutionLayouts, EveryLayoutEqualsOneRankInFloat64) {
  testing::expect_steps_of_one_rank(packed_recipe(testing::add_short_convolutions),
                                    {{"shard=2", kFsdp},
                                     {"tensor=4,expert_tensor=1"},
                                     {"context=2"},
                                     {.mesh = "context=4", .comm = "p2p"},
                                     {"context=2,tensor=2,expert=2,expert_tensor=1"},
                                     {"shard=2,context=2,pipeline=2,expert=2", kFsdp},
                                     {"shard=2,pipeline=2"},
                                     {"shard=2,tensor=2,expert=2,expert_tensor=1"}},
                                    3);
}

TEST(ShortConvolutionLayouts, HybridOlmoEqualsOneRankInFloat64) {
  testing::expect_steps_of_one_rank(packed_recipe(testing::add_hybrid_olmo),
                                    {{"tensor=4,expert_tensor=1"},
                                     {"context=4"},
                                     {"context=2,tensor=2,expert=2,expert_tensor=1"},
                                     {"shard=2,tensor=2,expert=2,expert_tensor=1"}},
                                    3);
}

TEST(ShortConvolutionLayouts, PlansAreKeptToTheByte) {
  for (void (*add)(ModelConfig&) : {testing::add_short_convolutions, testing::add_hybrid_olmo})
    for (const char* dtype : {"float64", "bfloat16"})
      for (const LaidOut& layout : {LaidOut{}, LaidOut{"tensor=2,expert=2,expert_tensor=1"}, LaidOut{"shard=2", kFsdp},
                                    LaidOut{"context=2,tensor=2,expert=2,expert_tensor=1"}}) {
        SCOPED_TRACE(cat(dtype, ", ", testing::described(layout)));
        RunConfig config = packed_recipe(add);
        config.model.dtype = dtype;
        config = laid_out(config, layout);
        config.train.sample_tokens = config.parallel.model_ranks() == 1 ? 4 : 0;
        testing::expect_kept(config, {.prompt_tokens = config.train.sample_tokens > 0 ? 3 : 0});
      }
}

TEST(ShortConvolutionLayouts, RecomputedLayersExchangeAgain) {
  RunConfig config = packed_recipe(testing::add_short_convolutions);
  for (const char* granularity : {"selective", "full"}) {
    config.model.recompute_granularity = granularity;
    testing::expect_steps_of_one_rank(config, {{"shard=2,context=2", kFsdp}}, 2);
  }
}

// Ranks divide neither channels nor heads here, and tokens read those of several chunks before theirs.
TEST(ShortConvolutionLayouts, ChannelsNeedNotDivide) {
  RunConfig config = packed_recipe(testing::add_short_convolutions);
  config.model.hidden_size = 30;
  config.model.attention.num_attention_heads = config.model.attention.num_query_groups = 3;
  config.model.linear_attention.linear_conv_kernel_dim = 9;
  testing::expect_steps_of_one_rank(config, {{"context=2"}, {"context=4"}}, 2);
}

}  // namespace
}  // namespace witan
