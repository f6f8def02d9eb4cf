// moe_exchange_factor on GPUs without peer memory: NCCL carries parts of a fixed size within recorded steps, and steps
// that overflow are rerun with exact counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "cuda/runs/bounded_memory.h"

namespace witan::testing {
namespace {

constexpr int64_t kPartSteps = 6;    // the last of them are replays
constexpr double kRoomForAll = 100;  // more than any rank may have for another
constexpr double kRoomForTheEvenLoad = 1;

RunConfig without_peers(const std::string& dtype, int64_t ranks) {
  RunConfig config = gpu_config(dtype);
  config.model.vocab_size = 7;  // few distinct tokens, and no balancing
  config.model.moe.moe_router_load_balancing_type = "none";
  config.parallel = {.ranks = ranks, .expert_model_parallel_size = ranks, .threads = 1, .deterministic = true};
  config.parallel.device = "cuda";
  config.parallel.peer_memory = false;
  return config;
}

// Compares recorded steps with parts of a fixed size with eager steps with exact counts.
void expect_the_bits_of_rows_as_they_come(RunConfig config) {
  EXPECT_NE(make_plan(resolve(config, {})).why_eager(), "");
  const Trajectory as_they_come = run_engine(config, kPartSteps);
  for (const double factor : {kRoomForAll, kRoomForTheEvenLoad}) {
    SCOPED_TRACE(cat("parts of ", factor));
    config.model.moe.moe_exchange_factor = factor;
    const Plan plan = make_plan(resolve(config, {}));
    EXPECT_EQ(plan.why_eager(), "");
    const Trajectory in_parts = run_engine(config, kPartSteps);
    EXPECT_EQ(std::ranges::max(in_parts.exchange_fills) > 1, factor == kRoomForTheEvenLoad);
    expect_same_bits(as_they_come, in_parts);
    expect_memory_of_steps(in_parts, config);
  }
}

class BoundedExchangeOnGpus : public EngineOnGpus, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    EngineOnGpus::SetUp();
    if (cuda::devices() < 2) GTEST_SKIP() << "needs 2 GPUs, there are " << cuda::devices();
  }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, BoundedExchangeOnGpus, ::testing::Values("float32", "bfloat16", "float64"));

TEST_P(BoundedExchangeOnGpus, HasTheBitsOfExactCounts) {
  for (const char* granularity : {"none", "selective", "full"}) {
    SCOPED_TRACE(cat("recompute ", granularity));
    RunConfig config = without_peers(GetParam(), 2);
    config.model.recompute_granularity = granularity;
    expect_the_bits_of_rows_as_they_come(config);
  }
}

TEST_P(BoundedExchangeOnGpus, HasThemBesideSharedExperts) {
  RunConfig config = without_peers(GetParam(), 2);
  config.model.moe.moe_shared_expert_intermediate_size = 96;
  config.model.moe.moe_shared_expert_overlap = true;
  expect_the_bits_of_rows_as_they_come(config);
}

TEST_P(BoundedExchangeOnGpus, HasThemWithShardedParameters) {
  RunConfig config = without_peers(GetParam(), 2);
  config.parallel.data_parallel_sharding_strategy = "optim_grads_params";
  expect_the_bits_of_rows_as_they_come(config);
}

TEST_P(BoundedExchangeOnGpus, HasThemWithBoundedReceiveBuffers) {
  RunConfig config = without_peers(GetParam(), 2);
  const Trajectory unbounded = run_engine(config, kPartSteps);
  config.model.moe.moe_pool_factor = 1;
  for (const double factor : {kRoomForAll, kRoomForTheEvenLoad}) {
    config.model.moe.moe_exchange_factor = factor;
    const Trajectory bounded = run_engine(config, kPartSteps);
    EXPECT_GT(std::ranges::max(bounded.passes), 1) << "no buffer overflowed: the test is vacuous";
    expect_same_bits(unbounded, bounded);
    EXPECT_EQ(bounded.arena_high_water, make_plan(resolve(config, {})).arena_bytes());
  }
}

using BoundedExchangesOnGpus = EngineOnGpus;

// Peer memory gives the same bits, so that a run may switch between them.
TEST_F(BoundedExchangesOnGpus, HaveTheBitsOfPeerMemory) {
  if (cuda::devices() < 2) GTEST_SKIP() << "needs 2 GPUs, there are " << cuda::devices();
  RunConfig config = without_peers("bfloat16", 2);
  config.model.moe.moe_exchange_factor = 1.5;
  const Trajectory in_parts = run_engine(config, kPartSteps);
  config.parallel.peer_memory = true;
  const Trajectory by_peers = run_engine(config, kPartSteps);
  EXPECT_EQ(std::ranges::max(by_peers.exchange_fills), 0) << "peers need no parts";
  expect_same_bits(in_parts, by_peers);
}

// So does the way through the host's memory, which has no capacity to overflow.
TEST_F(BoundedExchangesOnGpus, GiveTheBitsOfMemoryOfTheHost) {
  if (cuda::devices() < 2) GTEST_SKIP() << "needs 2 GPUs, there are " << cuda::devices();
  for (const int64_t replicas : {0, 1}) {
    SCOPED_TRACE(cat(replicas, " replicas"));
    RunConfig config = without_peers("bfloat16", 2);
    config.model.moe.moe_replicated_experts = replicas;
    const Trajectory by_nccl = run_engine(config, kPartSteps);
    config.parallel.peer_memory = config.parallel.through_host = true;
    config.model.moe.moe_exchange_factor = 1.5;
    EXPECT_EQ(make_plan(resolve(config, {})).why_eager(), "");
    const Trajectory by_host = run_engine(config, kPartSteps);
    EXPECT_EQ(std::ranges::max(by_host.exchange_fills), 0) << "it needs no parts";
    expect_same_bits(by_nccl, by_host);
    expect_memory_of_steps(by_host, config);
  }
}

TEST_F(BoundedExchangesOnGpus, OfFourRanksAgreeWithTheCpu) {
  if (cuda::devices() < 4) GTEST_SKIP() << "needs 4 GPUs, there are " << cuda::devices();
  for (const double factor : {kRoomForAll, kRoomForTheEvenLoad}) {
    RunConfig config = without_peers("float64", 4);
    config.model.moe.moe_exchange_factor = factor;
    expect_trained_in_memory_of_steps(config, kPartSteps);
  }
}

TEST_F(BoundedExchangesOnGpus, OfTwoRanksAgreeWithTheCpu) {
  if (cuda::devices() < 2) GTEST_SKIP() << "needs 2 GPUs, there are " << cuda::devices();
  for (const double factor : {kRoomForAll, kRoomForTheEvenLoad}) {
    RunConfig config = without_peers("float64", 2);
    config.model.moe.moe_exchange_factor = factor;
    expect_trained_in_memory_of_steps(config, kPartSteps);
  }
}

}  // namespace
}  // namespace witan::testing
