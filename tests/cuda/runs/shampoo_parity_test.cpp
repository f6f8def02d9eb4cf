// The published runs of Distributed Shampoo at full size, on one GPU and on as many as there are of 2 and 4: with
// Newton's roots. And a small one, which finds what the CPU finds.
#include "support/shampoo_parity.h"

#include <iostream>

#include "cuda/runs/engine_support.h"

namespace witan {
namespace {

using testing::kShampooSettings;
using testing::ShampooSetting;

class ShampooParityOnGpus : public testing::EngineOnGpus, public ::testing::WithParamInterface<ShampooSetting> {};
INSTANTIATE_TEST_SUITE_P(Settings, ShampooParityOnGpus, ::testing::ValuesIn(kShampooSettings),
                         [](const auto& setting) { return setting.param.name; });

TEST_P(ShampooParityOnGpus, LearnsAsPublished) {
  RunConfig config = testing::shampoo_recipe(GetParam());
  config.parallel.device = "cuda";
  config.optimizer.shampoo_root = "newton";
  for (const int ranks : {1, 2, 4}) {
    if (ranks > cuda::devices()) break;
    const std::string mesh = cat("shard=", ranks);
    const auto losses = testing::shampoo_losses(config, GetParam(), mesh);
    print_losses(std::cout, GetParam(), mesh, losses);
    EXPECT_LT(losses.back(), 0.01) << mesh;
  }
}

TEST_P(ShampooParityOnGpus, FindsWhatTheCpuFindsInFloat64) {
  RunConfig config = testing::small_shampoo_recipe(GetParam());
  config.model.dtype = "float64";
  config.optimizer.shampoo_root = "newton";
  const auto cpu = testing::shampoo_losses(config, GetParam(), "replicate=1", 50);
  config.parallel.device = "cuda";
  testing::expect_near(testing::shampoo_losses(config, GetParam(), "replicate=1", 50), cpu, 1e-4);
}

}  // namespace
}  // namespace witan
