// All kinds of routers and their random draws: neither layout nor recomputation changes the result, with full rows and
// with padded rows of packed documents.
#include <gtest/gtest.h>

#include "support/long_form.h"
#include "train/step/layouts/one_rank.h"
#include "train/step/layouts/padded_rows.h"
#include "train/step/layouts/router_variants.h"

namespace witan {
namespace {

using testing::expect_equal;
using testing::kFsdp;
using testing::LaidOut;
using testing::padded_batches;
using testing::router_recipe;
using testing::run_engine;
using testing::Trajectory;

const int64_t kSteps = testing::steps_of(2, 20);

class RouterLayouts : public ::testing::TestWithParam<testing::RouterVariant> {
 protected:
  static std::vector<LaidOut> layouts(const RunConfig& config) {
    std::vector<LaidOut> layouts = {{"shard=4,expert=2", kFsdp}, {"context=2"}};
    if (config.model.mtp_num_layers > 0) return layouts;
    layouts.push_back({"pipeline=2"});
    layouts.push_back({"shard=2,context=2,tensor=2,expert=2,expert_tensor=1", kFsdp});
    return layouts;
  }

  static void expect_one_result(RunConfig config, const testing::MakeBatches& batches) {
    GetParam().change(config.model);
    const auto compare = [](const Trajectory& one, const Trajectory& found, const std::string& what) {
      testing::expect_nearly_equal(one, found, what);
      for (size_t step = 0; step < one.dropped.size(); ++step)
        EXPECT_NEAR(one.dropped[step], found.dropped[step], 1e-12);
      EXPECT_EQ(found.arena_high_water, found.planned_arena);
    };
    const Trajectory one = testing::compare_layouts(config, layouts(config), kSteps, compare, batches);
    for (const double loss : one.losses) EXPECT_TRUE(std::isfinite(loss));
    config.model.recompute_granularity = "full";
    expect_equal(one, run_engine(config, kSteps, batches), 1e-12, "full recompute");
  }
};
INSTANTIATE_TEST_SUITE_P(Routers, RouterLayouts, ::testing::ValuesIn(testing::router_variants()),
                         [](const auto& variant) { return variant.param.name; });

TEST_P(RouterLayouts, GiveFullRowsOneResult) {
  expect_one_result(router_recipe(), testing::own_batches);
}

TEST_P(RouterLayouts, GivePaddedRowsOneResult) {
  RunConfig config = router_recipe();
  config.data.data_packing = "best_fit";
  expect_one_result(config, padded_batches);
}

// All except the first, which is the recipe itself.
TEST(RouterVariants, ChangeARun) {
  const Trajectory plain = run_engine(router_recipe(), kSteps);
  const auto variants = testing::router_variants();
  for (size_t i = 1; i < variants.size(); ++i) {
    RunConfig config = router_recipe();
    variants[i].change(config.model);
    EXPECT_NE(run_engine(config, kSteps).losses, plain.losses) << variants[i].name;
  }
}

}  // namespace
}  // namespace witan
