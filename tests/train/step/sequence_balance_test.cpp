// A loss that balances each sequence separately is independent of the layout and the micro-batch size.
#include <gtest/gtest.h>

#include <algorithm>

#include "train/step/balance_recipe.h"
#include "train/step/layouts/one_rank.h"
#include "train/step/layouts/recut.h"

namespace witan {
namespace {

using testing::expect_equal;
using testing::laid_out;
using testing::LaidOut;
using testing::recut;
using testing::run_engine;
using testing::Trajectory;

constexpr int64_t kSteps = 3;

// The balancing loss is as large as the language model's, and every step is clipped.
RunConfig balanced_config() {
  RunConfig config = testing::balance_recipe("seq_aux_loss");
  config.model.moe.moe_aux_loss_coeff = "1";
  config.model.moe.moe_z_loss_coeff = 1e-2;
  return config;
}

void expect_equal_cut_anyhow(const RunConfig& config, const std::vector<LaidOut>& layouts) {
  const Trajectory one = run_engine(config, kSteps, recut);
  EXPECT_GT(std::ranges::min(one.norms), config.optimizer.clip_grad)
      << "no step is clipped, so the test proves nothing";
  for (const LaidOut& layout : layouts)
    for (const int64_t size : {1, 2, 4}) {
      RunConfig several = laid_out(config, layout);
      several.train.micro_batch_size = size;
      const std::string what = cat(described(layout), ", micro-batches of ", size);
      const Trajectory found = run_engine(several, kSteps, recut);
      expect_equal(one, found, 1e-9, what);
      EXPECT_EQ(found.arena_high_water, found.planned_arena) << what;
    }
}

TEST(SequenceBalance, IsInvariantToLayoutsAndMicroBatches) {
  expect_equal_cut_anyhow(balanced_config(), {{},
                                              {"context=2"},
                                              {"context=4"},
                                              {"tensor=2,expert_tensor=1"},
                                              {"replicate=2,expert=2"},
                                              {"pipeline=2"},
                                              {"shard=2,context=2", "optim_grads_params"},
                                              {"context=2,tensor=2,expert=2,expert_tensor=2"},
                                              {"context=2,tensor=2,pipeline=2,expert=2,expert_tensor=1"}});
}

// The end of a document does not end a sequence; recomputed layers are balanced once.
TEST(SequenceBalance, OfRecomputedDocumentsIsInvariantToo) {
  RunConfig config = balanced_config();
  config.data.reset_attention_mask = config.data.reset_position_ids = true;
  config.model.recompute_granularity = "full";
  config.model.moe.moe_router_topk = 1;
  config.model.moe.moe_router_pre_softmax = true;
  expect_equal_cut_anyhow(config, {{"context=2,tensor=2,expert_tensor=1"}});
}

// With two sequences in a micro-batch, balancing both together gives another loss and other gradients.
TEST(SequenceBalance, DiffersFromThatOfAMicroBatch) {
  RunConfig config = balanced_config();
  config.train.micro_batch_size = 2;
  const Trajectory apart = run_engine(config, 1, recut);
  config.model.moe.moe_router_load_balancing_type = "aux_loss";
  const Trajectory together = run_engine(config, 1, recut);
  EXPECT_EQ(apart.losses, together.losses);
  EXPECT_GT(apart.balances[0], together.balances[0] + 1e-3) << "two sequences can use different experts";
  EXPECT_GT(std::abs(apart.norms[0] - together.norms[0]), 1e-6);
  config.train.micro_batch_size = 1;
  const Trajectory single = run_engine(config, 1, recut);
  EXPECT_NEAR(apart.balances[0], single.balances[0], 1e-12);
}

// With one loss for the micro-batch and another for its sequences.
TEST(SequenceBalance, WithThatOfAMicroBatchIsInvariantToLayouts) {
  RunConfig config = balanced_config();
  config.train.micro_batch_size = 2;
  config.model.moe.moe_router_load_balancing_type = "aux_loss,seq_aux_loss";
  config.model.moe.moe_aux_loss_coeff = "0.5,1";
  const Trajectory one = testing::expect_planned_steps_of_one_rank(config,
                                                                   {{"context=2"},
                                                                    {"tensor=2,expert_tensor=1"},
                                                                    {"replicate=2,expert=2"},
                                                                    {"shard=2,pipeline=2", testing::kFsdp},
                                                                    {"context=2,tensor=2,expert=2,expert_tensor=1"}},
                                                                   kSteps);
  for (const char* less : {"0,1", "0.5,0"}) {
    config.model.moe.moe_aux_loss_coeff = less;
    EXPECT_NE(run_engine(config, 1).norms, std::vector<double>(one.norms.begin(), one.norms.begin() + 1)) << less;
  }
}

TEST(SequenceBalance, DeterministicLayoutsHaveTheBitsOfOneRank) {
  RunConfig config = balanced_config();
  config.model.dtype = "float32";
  config.train.micro_batch_size = 2;
  config.train.check_states = true;
  config.parallel.deterministic = true;
  testing::expect_bits_of_one_rank(config, {{"replicate=2,expert=2"}, {"shard=2,pipeline=2", testing::kFsdp}}, kSteps);
}

}  // namespace
}  // namespace witan
