// The loss that balances the global batch's load. With the last step's load it is the same in every layout; with the
// load of the batch so far it depends only on the number of data-parallel ranks.
#include <gtest/gtest.h>

#include <algorithm>

#include "train/step/balance_recipe.h"
#include "train/step/layouts/laid_out.h"

namespace witan {
namespace {

using testing::expect_equal;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

constexpr int64_t kSteps = 3;

// The balancing loss is as large as the language model's, and every step is clipped.
RunConfig globally_balanced() {
  RunConfig config = testing::balance_recipe("global_aux_loss");
  config.model.moe.moe_aux_loss_coeff = "1";
  config.model.moe.moe_global_load = "so_far";
  return config;
}

RunConfig balanced_by_the_last_step() {
  RunConfig config = globally_balanced();
  config.model.moe.moe_global_load = "last_step";
  return config;
}

void expect_equal_layouts(const RunConfig& config, const std::vector<LaidOut>& layouts) {
  const Trajectory one = run_engine(laid_out(config, layouts.front()), kSteps);
  EXPECT_GT(std::ranges::min(one.norms), config.optimizer.clip_grad)
      << "no step is clipped, so the test proves nothing";
  for (const LaidOut& layout : layouts) {
    const Trajectory found = run_engine(laid_out(config, layout), kSteps);
    expect_equal(one, found, 1e-9, described(layout));
    EXPECT_EQ(found.arena_high_water, found.planned_arena) << described(layout);
  }
}

TEST(GlobalBalance, OfTheLastStepIsInvariantToAllLayouts) {
  const RunConfig config = balanced_by_the_last_step();
  expect_equal_layouts(config, {{},
                                {"replicate=2"},
                                {"replicate=4"},
                                {"context=2"},
                                {"tensor=2,expert_tensor=1"},
                                {"pipeline=2"},
                                {"shard=2,expert=2", "optim_grads_params"},
                                {"replicate=2,tensor=2,expert=2,expert_tensor=2"},
                                {"context=2,tensor=2,pipeline=2,expert=2,expert_tensor=1"},
                                {"replicate=2,shard=2,context=2", "optim_grads_params"}});
  RunConfig beside = config;
  beside.model.moe.moe_router_load_balancing_type = "aux_loss,seq_aux_loss,global_aux_loss";
  beside.model.moe.moe_aux_loss_coeff = "0.5,0.25,1";
  beside.train.micro_batch_size = 2;
  expect_equal_layouts(beside, {{}, {"replicate=2"}, {"shard=2,context=2"}, {"replicate=2,expert=2"}});
}

// In the first step the load counts as balanced; later the loss differs from that of the micro-batch's own load.
TEST(GlobalBalance, OfTheLastStepStartsBalanced) {
  RunConfig config = balanced_by_the_last_step();
  const Trajectory last = run_engine(config, 2);
  EXPECT_NEAR(last.balances[0], 1, 1e-12);
  EXPECT_GT(std::abs(last.balances[1] - 1), 1e-6);
  config.model.moe.moe_router_load_balancing_type = "aux_loss";
  EXPECT_GT(std::abs(run_engine(config, 2).balances[1] - last.balances[1]), 1e-6);
}

TEST(GlobalBalance, OfTheLastStepHasTheSameBitsInDeterministicLayouts) {
  RunConfig config = balanced_by_the_last_step();
  config.model.dtype = "float32";
  config.train.micro_batch_size = 2;
  config.parallel.deterministic = true;
  const Trajectory one = run_engine(config, kSteps);
  config.model.recompute_granularity = "full";
  const Trajectory several = run_engine(laid_out(config, {"shard=2,pipeline=2", "optim_grads_params"}), kSteps);
  EXPECT_EQ(one.balances, several.balances);
  EXPECT_EQ(one.norms, several.norms);
  EXPECT_EQ(one.weights, several.weights);
}

TEST(GlobalBalance, IsInvariantToLayoutsWithEquallyManyDataRanks) {
  const RunConfig config = globally_balanced();
  expect_equal_layouts(config, {{},
                                {"context=2"},
                                {"tensor=2,expert_tensor=1"},
                                {"context=2", "optim_grads_params"},
                                {"pipeline=2"},
                                {"context=2,tensor=2,pipeline=2,expert=2,expert_tensor=1"}});
  expect_equal_layouts(config, {{"replicate=2"},
                                {"shard=2,expert=2", "optim_grads_params"},
                                {"replicate=2,context=2,expert=2"},
                                {"shard=2,pipeline=2", "optim_grads", 1},
                                {"replicate=2,tensor=2,expert=2,expert_tensor=2"}});
  expect_equal_layouts(config, {{"replicate=4"}, {"replicate=2,shard=2,context=2", "optim_grads_params"}});
}

TEST(GlobalBalance, WithOtherLossesIsInvariantToo) {
  RunConfig config = globally_balanced();
  config.model.moe.moe_router_load_balancing_type = "aux_loss,seq_aux_loss,global_aux_loss";
  config.model.moe.moe_aux_loss_coeff = "0.5,0.25,1";
  config.train.micro_batch_size = 2;
  expect_equal_layouts(config, {{"replicate=2"}, {"shard=2,context=2"}, {"replicate=2,expert=2"}});
}

// Recomputed layers use the load of the first run.
TEST(GlobalBalance, RecomputationChangesNoBit) {
  RunConfig config = laid_out(globally_balanced(), {"replicate=2,expert=2"});
  const Trajectory kept = run_engine(config, kSteps);
  config.model.recompute_granularity = "full";
  const Trajectory again = run_engine(config, kSteps);
  EXPECT_EQ(kept.norms, again.norms);
  EXPECT_EQ(kept.weights, again.weights);
}

// More ranks see more of the batch before their first losses are computed; a single micro-batch is the whole batch.
TEST(GlobalBalance, UsesTheBatchSoFar) {
  RunConfig config = globally_balanced();
  const Trajectory one = run_engine(config, 1), two = run_engine(laid_out(config, {"replicate=2"}), 1);
  EXPECT_NEAR(one.losses[0], two.losses[0], 1e-12);
  EXPECT_GT(std::abs(one.balances[0] - two.balances[0]), 1e-6);
  config.train.micro_batch_size = 8;
  const Trajectory whole = run_engine(config, kSteps);
  config.model.moe.moe_router_load_balancing_type = "aux_loss";
  expect_equal(run_engine(config, kSteps), whole, 1e-12, "one micro-batch");
}

TEST(GlobalBalance, DeterministicLayoutsHaveTheSameBits) {
  RunConfig config = globally_balanced();
  config.model.dtype = "float32";
  config.train.micro_batch_size = 2;
  config.train.check_states = true;
  config.parallel.deterministic = true;
  const Trajectory two = run_engine(laid_out(config, {"replicate=2"}), kSteps);
  const Trajectory several = run_engine(laid_out(config, {"shard=2,pipeline=2", "optim_grads_params"}), kSteps);
  EXPECT_EQ(two.losses, several.losses);
  EXPECT_EQ(two.balances, several.balances);
  EXPECT_EQ(two.norms, several.norms);
  EXPECT_EQ(two.weights, several.weights);
}

}  // namespace
}  // namespace witan
