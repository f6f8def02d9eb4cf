// Layers with an indexer train alike in every layout that divides them, over packed documents, with choices that layers
// share, in the dense warm-up too, and take the planned memory.
#include <gmock/gmock.h>

#include "planner/real_run.h"
#include "support/message_of.h"
#include "support/model_variants.h"
#include "train/step/layouts/laid_out.h"
#include "train/step/run_support.h"

namespace witan {
namespace {

using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

RunConfig sparse_recipe() {
  RunConfig config = testing::divisible_config();
  config.model.vocab_size = 64;
  config.train.global_batch_size = 4;
  config.data.reset_attention_mask = config.data.reset_position_ids = true;
  testing::add_latent_attention(config.model, {12, 16, 6, 4, 6});
  testing::add_sparse_attention(config.model);
  return laid_out(config, {});
}

const std::vector<LaidOut> kSparseLayouts = {
    {"replicate=2"},
    {"shard=2", kFsdp},
    {"tensor=2,expert_tensor=1"},
    {"tensor=4,expert_tensor=1"},
    {"pipeline=2"},
    {"shard=2,tensor=2,pipeline=2,expert=2,expert_tensor=1"},
};

TEST(SparseAttentionLayouts, EveryLayoutEqualsOneRankInFloat64) {
  const RunConfig config = sparse_recipe();
  const Trajectory one = run_engine(config, 3);
  EXPECT_GT(std::ranges::min(one.norms), config.optimizer.clip_grad) << "nothing is clipped: nothing is shown";
  for (const LaidOut& layout : kSparseLayouts)
    testing::expect_equal(one, run_engine(laid_out(config, layout), 3), 1e-9, described(layout));
}

// Only the indexers learn, from all keys.
TEST(SparseAttentionLayouts, TheWarmUpTrainsIndexersAlone) {
  RunConfig config = sparse_recipe();
  config.model.sparse_attention.dsa_indexer_use_sparse_loss = false;
  config.model.sparse_attention.dsa_dense_warmup = true;
  config.optimizer.clip_grad = 0.001;
  const Trajectory one = run_engine(config, 3);
  EXPECT_GT(std::ranges::min(one.norms), 0);
  for (const LaidOut& layout : {LaidOut{"shard=2", kFsdp}, LaidOut{"tensor=2,expert_tensor=1"}, LaidOut{"pipeline=2"}})
    testing::expect_equal(one, run_engine(laid_out(config, layout), 3), 1e-9, described(layout));
}

TEST(SparseAttentionLayouts, RecomputedLayersGiveTheSameBits) {
  RunConfig config = sparse_recipe();
  const Trajectory kept = run_engine(config, 2);
  config.model.recompute_granularity = "full";
  const Trajectory full = run_engine(config, 2);
  EXPECT_EQ(full.losses, kept.losses);
  EXPECT_EQ(full.norms, kept.norms);
  config.model.recompute_granularity = "selective";
  config.model.recompute_modules = "layernorm,mla_up_proj,moe";
  const Trajectory selective = run_engine(config, 2);
  EXPECT_EQ(selective.losses, kept.losses);
  EXPECT_EQ(selective.norms, kept.norms);
}

TEST(SparseAttentionLayouts, PlansAreKeptToTheByte) {
  for (const LaidOut& layout : {LaidOut{}, LaidOut{"tensor=2,expert=2,expert_tensor=1"}, LaidOut{"shard=2", kFsdp}}) {
    SCOPED_TRACE(described(layout));
    RunConfig config = laid_out(sparse_recipe(), layout);
    config.train.sample_tokens = config.parallel.model_ranks() == 1 ? 4 : 0;
    testing::expect_kept(config, {.prompt_tokens = config.train.sample_tokens > 0 ? 3 : 0});
  }
}

TEST(SparseAttentionLayouts, RanksThatDoNotDivideItAreRefused) {
  const auto refusal = [](const LaidOut& layout) {
    return test::message_of<ConfigError>([&] { laid_out(sparse_recipe(), layout).validate(); });
  };
  EXPECT_EQ(refusal({"context=2"}),
            "context_parallel_size = 2: the indexer of experimental_attention_variant = dsa needs whole sequences, "
            "because a token chooses among all earlier keys; set context_parallel_size to 1, the nearest that works");
  RunConfig config = laid_out(sparse_recipe(), {"pipeline=4"});
  EXPECT_THAT(test::message_of<ConfigError>([&] { run_engine(config, 1); }),
              ::testing::HasSubstr("dsa_indexer_freq: layer 1 uses the choice of layer 0, which is in another pipeline "
                                   "stage"));
}

}  // namespace
}  // namespace witan
