// The published runs of Distributed Shampoo at full size, with Newton's roots, on one GPU and on 2 and 4 if there are
// as many; and a small run that must match the CPU.
#include "support/shampoo_parity.h"

#include <iostream>
#include <string>
#include <vector>

#include "cuda/runs/engine_support.h"

namespace witan {
namespace {

using testing::kGraftEpsilons;
using testing::kShampooSettings;
using testing::ShampooSetting;

class ShampooParityOnGpus : public testing::EngineOnGpus, public ::testing::WithParamInterface<ShampooSetting> {};
INSTANTIATE_TEST_SUITE_P(Settings, ShampooParityOnGpus, ::testing::ValuesIn(kShampooSettings),
                         [](const auto& setting) { return setting.param.name; });

struct ShardedSetting {
  ShampooSetting setting;
  int shards;
  bool fsdp = false;
};
std::vector<ShardedSetting> sharded_settings() {
  std::vector<ShardedSetting> all;
  for (const ShampooSetting& setting : kShampooSettings) {
    for (const int shards : {1, 2, 4}) all.push_back({setting, shards});
    for (const int shards : {2, 4}) all.push_back({setting, shards, true});
  }
  for (const ShampooSetting& setting : kGraftEpsilons)
    for (const int shards : {1, 2}) all.push_back({setting, shards});
  return all;
}

class PublishedShampooOnGpus : public testing::EngineOnGpus, public ::testing::WithParamInterface<ShardedSetting> {};
INSTANTIATE_TEST_SUITE_P(Settings, PublishedShampooOnGpus, ::testing::ValuesIn(sharded_settings()),
                         [](const auto& run) {
                           return cat(run.param.setting.name, run.param.fsdp ? "Fsdp" : "Shard", run.param.shards);
                         });

// Takes minutes each: the roots of matrices of 8192 rows.
TEST_P(PublishedShampooOnGpus, LearnsAsPublished) {
  const auto& [setting, shards, fsdp] = GetParam();
  if (shards > cuda::devices()) GTEST_SKIP() << shards << " shards need as many GPUs";
  RunConfig config = testing::shampoo_recipe(setting);
  config.parallel.device = "cuda";
  config.optimizer.shampoo_root = "newton";
  if (fsdp) config.parallel.data_parallel_sharding_strategy = "optim_grads_params";
  const std::string mesh = cat("shard=", shards);
  const auto losses = testing::shampoo_losses(config, setting, mesh);
  print_losses(std::cout, setting, mesh, losses);
  testing::expect_published(setting, losses);
}

TEST_P(ShampooParityOnGpus, MatchesTheCpuInFloat64) {
  RunConfig config = testing::small_shampoo_recipe(GetParam());
  config.model.dtype = "float64";
  config.optimizer.shampoo_root = "newton";
  const auto cpu = testing::shampoo_losses(config, GetParam(), "replicate=1", 50);
  config.parallel.device = "cuda";
  testing::expect_near(testing::shampoo_losses(config, GetParam(), "replicate=1", 50), cpu, 1e-4);
}

}  // namespace
}  // namespace witan
