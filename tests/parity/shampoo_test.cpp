// The published runs of Distributed Shampoo in three settings. The original got stuck with 2 and 4 shards, since the
// vocabulary is not divisible; here all layouts learn alike.
#include <iostream>

#include "support/long_form.h"
#include "support/shampoo_parity.h"

namespace witan {
namespace {

using testing::kShampooSettings;
using testing::ShampooSetting;

struct Row {
  const char* mesh;
  const char* strategy = "auto";
};
constexpr const char* kFsdp = "optim_grads_params";
constexpr Row kRows[] = {{"replicate=1"},         {"shard=2"}, {"shard=4"}, {"shard=2", kFsdp}, {"shard=4", kFsdp},
                         {"replicate=2,shard=2"}, {"tensor=2"}};

class ShampooParity : public ::testing::TestWithParam<ShampooSetting> {};
INSTANTIATE_TEST_SUITE_P(Settings, ShampooParity, ::testing::ValuesIn(kShampooSettings),
                         [](const auto& setting) { return setting.param.name; });

// Factors of five tokens have rank five: their smallest eigenvalues are rounding errors, which a step amplifies.
TEST_P(ShampooParity, EveryLayoutTrainsASmallModelAlike) {
  constexpr int64_t kSteps = 60;  // two updates of the roots, each with later steps
  RunConfig config = testing::small_shampoo_recipe(GetParam());
  config.model.dtype = "float64";
  std::vector<double> one;
  for (const auto& [mesh, strategy] : kRows) {
    SCOPED_TRACE(strategy);
    config.parallel.data_parallel_sharding_strategy = strategy;
    const auto losses = testing::shampoo_losses(config, GetParam(), mesh, kSteps);
    print_losses(std::cout, GetParam(), mesh, losses);
    ASSERT_EQ(losses.size(), static_cast<size_t>(kSteps / 10));
    EXPECT_LT(losses.back(), 0.01) << mesh;
    if (one.empty()) one = losses;
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], one[i], 1e-3 * one[i] + 1e-9) << mesh << " " << i;
  }
}

// The transformer itself takes hours and up to 16 GiB, since its preconditioners have 8192 rows. tests/cuda runs it
// too.
TEST_P(ShampooParity, LearnsAsPublished) {
  if (!testing::form_of_hours()) GTEST_SKIP() << "153 million parameters: set WITAN_LONG_TESTS=hours";
  for (const char* mesh : {"replicate=1", "shard=2", "shard=4", "replicate=2,shard=2"}) {
    SCOPED_TRACE(mesh);
    const auto losses = testing::shampoo_losses(testing::shampoo_recipe(GetParam()), GetParam(), mesh);
    print_losses(std::cout, GetParam(), mesh, losses);
    testing::expect_published(GetParam(), losses);
  }
}

}  // namespace
}  // namespace witan
