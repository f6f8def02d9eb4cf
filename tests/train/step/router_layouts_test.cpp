// Routers of every choice, in runs in which no layout and no recomputation changes the result.
#include <gtest/gtest.h>

#include <functional>

#include "support/long_form.h"
#include "train/run/run_support.h"
#include "train/step/laid_out.h"

namespace witan {
namespace {

using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

constexpr const char* kFsdp = "optim_grads_params";
const int64_t kSteps = testing::steps_of(2, 20);

RunConfig recipe() {
  RunConfig config = testing::divisible_config();
  config.model.num_layers = 2;
  config.model.moe.moe_z_loss_coeff = 1e-3;
  config.train.micro_batch_size = 2;
  config.train.check_states = true;
  return laid_out(config, {});
}

const std::vector<LaidOut> kLayouts = {
    {"shard=4,expert=2", kFsdp},
    {"context=2"},
    {"pipeline=2"},
    {"shard=2,context=2,tensor=2,expert=2,expert_tensor=1", kFsdp},
};

void expect_one_result(const std::function<void(MoeConfig&)>& change) {
  RunConfig config = recipe();
  change(config.model.moe);
  const Trajectory one = run_engine(config, kSteps);
  EXPECT_NE(one.losses, run_engine(recipe(), kSteps).losses) << "the option changes nothing";
  for (const LaidOut& layout : kLayouts) {
    const RunConfig several = laid_out(config, layout);
    const Trajectory found = run_engine(several, kSteps);
    testing::expect_equal(one, found, 1e-9, described(layout));
    EXPECT_EQ(found.arena_high_water, make_plan(resolve(several, {})).arena_bytes()) << described(layout);
  }
  config.model.recompute_granularity = "full";
  testing::expect_equal(one, run_engine(config, kSteps), 1e-12, "full recompute");
}

TEST(RouterLayouts, GroupsBiasesAndScaledScores) {
  expect_one_result([](MoeConfig& moe) {
    moe.moe_router_score_function = "sqrtsoftplus";
    moe.moe_router_norm_topk_prob = "false";
    moe.moe_router_topk_scaling_factor = 1.5;
    moe.moe_router_num_groups = 4;
    moe.moe_router_group_topk = 2;
    moe.moe_router_add_bias = true;
    moe.moe_router_enable_expert_bias = true;
    moe.moe_router_bias_update_rate = 0.02;
  });
}

TEST(RouterLayouts, NoiseOnTheInput) {
  expect_one_result([](MoeConfig& moe) { moe.moe_input_jitter_eps = 0.3; });
}

TEST(RouterLayouts, Sinkhorn) {
  expect_one_result([](MoeConfig& moe) { moe.moe_router_selection = "sinkhorn"; });
}

TEST(RouterLayouts, ForcedChoices) {
  expect_one_result([](MoeConfig& moe) { moe.moe_router_selection = "uniform"; });
  expect_one_result([](MoeConfig& moe) { moe.moe_router_selection = "skew"; });
  expect_one_result([](MoeConfig& moe) {
    moe.moe_router_selection = "zipf";
    moe.moe_router_imbalance = 1.5;
  });
}

TEST(RouterLayouts, Hash) {
  expect_one_result([](MoeConfig& moe) { moe.moe_router_selection = "hash"; });
}

TEST(RouterLayouts, ExpertChoice) {
  expect_one_result([](MoeConfig& moe) {
    moe.moe_router_selection = "expert_choice";
    moe.moe_router_pre_softmax = true;
  });
}

}  // namespace
}  // namespace witan
