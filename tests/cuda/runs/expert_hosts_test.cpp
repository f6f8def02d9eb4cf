// hierarchical_expert_parallel_size on four GPUs that act as two hosts: NCCL carries copies of tokens between them, and
// peer memory or NCCL the rows within them, in recorded steps if both are bounded.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "cuda/runs/bounded_memory.h"

namespace witan::testing {
namespace {

constexpr int64_t kHostSteps = 6;    // the last of them are replays
constexpr double kRoomForAll = 100;  // more than any rank may have for a host
constexpr double kRoomForTheEvenLoad = 1;

RunConfig by_hosts(const std::string& dtype, bool peers, double factor) {
  RunConfig config = gpu_config(dtype);
  config.model.vocab_size = 7;  // few distinct tokens, and no balancing
  config.model.moe.num_experts = 8;
  config.model.moe.moe_router_topk = 3;
  config.model.moe.moe_router_load_balancing_type = "none";
  config.model.moe.moe_exchange_factor = factor;
  config.parallel = {.ranks = 4, .expert_model_parallel_size = 4, .threads = 1};
  config.parallel.hierarchical_expert_parallel_size = 2;
  config.parallel.device = "cuda";
  config.parallel.peer_memory = peers;
  return config;
}

class ExpertHostsOnGpus : public EngineOnGpus, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    EngineOnGpus::SetUp();
    if (cuda::devices() < 4) GTEST_SKIP() << "needs 4 GPUs, there are " << cuda::devices();
  }
};
INSTANTIATE_TEST_SUITE_P(Within, ExpertHostsOnGpus, ::testing::Bool(),
                         [](const auto& peers) { return peers.param ? "PeerMemory" : "Nccl"; });

// Eager steps with exact counts, recorded steps with parts of a fixed size, and steps that overflow.
TEST_P(ExpertHostsOnGpus, AgreeWithTheCpu) {
  for (const double factor : {0.0, kRoomForAll, kRoomForTheEvenLoad})
    for (const char* granularity : {"none", "full"}) {
      SCOPED_TRACE(cat("parts of ", factor, ", recompute ", granularity));
      RunConfig config = by_hosts("float64", GetParam(), factor);
      config.model.recompute_granularity = granularity;
      EXPECT_EQ(make_plan(resolve(config, {})).why_eager() == "", factor > 0);
      expect_trained_in_memory_of_steps(config, kHostSteps);
    }
}

TEST_P(ExpertHostsOnGpus, AgreeWithTheCpuInOtherConfigurations) {
  for (const auto& change : std::vector<std::function<void(RunConfig&)>>{
           [](RunConfig& c) {
             c.model.moe.moe_shared_expert_intermediate_size = 96;
             c.model.moe.moe_shared_expert_overlap = true;
           },
           [](RunConfig& c) { c.model.moe.moe_pool_factor = 1.5; },
           [](RunConfig& c) { c.parallel.hierarchical_expert_parallel_size = 1; },
           [](RunConfig& c) { c.parallel.data_parallel_sharding_strategy = "optim_grads_params"; }}) {
    RunConfig config = by_hosts("float64", GetParam(), 1.5);
    change(config);
    expect_trained_in_memory_of_steps(config, kHostSteps);
  }
}

TEST_P(ExpertHostsOnGpus, TrainAsWithDirectRows) {
  RunConfig config = by_hosts("bfloat16", GetParam(), kRoomForAll);
  const Trajectory hosts = run_engine(config, kHostSteps);
  expect_memory_of_steps(hosts, config);
  config.parallel.hierarchical_expert_parallel_size = 0;
  expect_near(hosts.losses, run_engine(config, kHostSteps).losses, 0.02);
}

TEST_P(ExpertHostsOnGpus, RerunStepsThatOverflow) {
  const Trajectory tight = run_engine(by_hosts("float32", GetParam(), kRoomForTheEvenLoad), kHostSteps);
  EXPECT_GT(std::ranges::max(tight.exchange_fills), 1) << "no part overflowed: the test is vacuous";
  const Trajectory roomy = run_engine(by_hosts("float32", GetParam(), kRoomForAll), kHostSteps);
  EXPECT_EQ(std::ranges::max(roomy.exchange_fills), 0);
  expect_near(tight.losses, roomy.losses, 1e-3);
}

}  // namespace
}  // namespace witan::testing
