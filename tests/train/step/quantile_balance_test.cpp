// Runs whose experts are chosen with a bias from quantiles: neither layout nor recomputation changes the result.
#include <gtest/gtest.h>

#include <algorithm>

#include "train/step/balance_recipe.h"
#include "train/step/layouts/one_rank.h"

namespace witan {
namespace {

using testing::expect_equal;
using testing::run_engine;
using testing::Trajectory;

constexpr int64_t kSteps = 3;

RunConfig quantile_config() {
  RunConfig config = testing::balance_recipe("quantile_balancing");
  config.model.moe.moe_z_loss_coeff = 1e-2;
  config.train.micro_batch_size = 2;
  config.train.check_states = true;
  return config;
}

TEST(QuantileBalancing, IsInvariantToLayouts) {
  for (const char* scores : {"softmax", "sigmoid"}) {
    RunConfig config = quantile_config();
    config.model.moe.moe_router_score_function = scores;
    SCOPED_TRACE(scores);
    testing::expect_planned_steps_of_one_rank(config,
                                              {{"context=2"},
                                               {"tensor=2,expert_tensor=1"},
                                               {"replicate=4,expert=2"},
                                               {"pipeline=2"},
                                               {"shard=2,context=2", testing::kFsdp},
                                               {"context=2,tensor=2,expert=2,expert_tensor=1"}},
                                              kSteps);
  }
}

TEST(QuantileBalancing, ChangesChoicesAndIsNotCountedTwice) {
  RunConfig config = quantile_config();
  const Trajectory one = run_engine(config, kSteps);
  config.model.recompute_granularity = "full";
  expect_equal(one, run_engine(config, kSteps), 1e-12, "full recompute");
  config.model.moe.moe_router_load_balancing_type = "none";
  EXPECT_NE(run_engine(config, kSteps).losses, one.losses) << "the bias has no effect";
}

TEST(QuantileBalancing, DeterministicLayoutsHaveTheBitsOfOneRank) {
  RunConfig config = quantile_config();
  config.model.dtype = "bfloat16";
  config.parallel.deterministic = true;
  testing::expect_bits_of_one_rank(config, {{"replicate=4,expert=2"}, {"shard=2,pipeline=2", testing::kFsdp}}, kSteps);
}

}  // namespace
}  // namespace witan
