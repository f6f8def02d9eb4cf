// moe_replicated_experts on GPUs: recorded steps that compute hot experts on several ranks have the bits of steps
// without replicas in deterministic mode, and the CPU's results.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "cuda/runs/engine_support.h"

namespace witan::testing {
namespace {

class ReplicasOnGpus : public EngineOnGpus, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    EngineOnGpus::SetUp();
    if (cuda::devices() < 2) GTEST_SKIP() << "needs 2 GPUs, there are " << cuda::devices();
  }

  // Uses all GPUs that divide the experts, at most 4.
  static RunConfig hot(const char* dtype) {
    RunConfig config = gpu_config(dtype);
    config.model.vocab_size = 7;
    config.model.moe.num_experts = 8;
    config.model.moe.moe_router_load_balancing_type = "none";
    const int64_t ranks = cuda::devices() < 4 ? 2 : 4;
    config.parallel = {.ranks = ranks, .expert_model_parallel_size = ranks, .threads = 1, .deterministic = true};
    config.parallel.device = "cuda";
    return config;
  }
  static Trajectory replicated(RunConfig config, int64_t slots) {
    config.model.moe.moe_replicated_experts = slots;
    return run_engine(config, 5);
  }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, ReplicasOnGpus, ::testing::Values("float32", "bfloat16", "float64"));

TEST_P(ReplicasOnGpus, ChangeNoBitOfDeterministicSteps) {
  for (const char* granularity : {"none", "full"})
    for (const int64_t slots : {1, 3}) {
      SCOPED_TRACE(cat("recompute ", granularity, ", ", slots, " slots"));
      RunConfig config = hot(GetParam());
      config.model.recompute_granularity = granularity;
      const Trajectory with = replicated(config, slots);
      expect_same_bits(with, replicated(config, 0));
      config.model.moe.moe_replicated_experts = slots;
      EXPECT_EQ(make_plan(resolve(config, {})).why_eager(), "") << "the step is one graph";
      EXPECT_EQ(with.arena_high_water, make_plan(resolve(config, {})).arena_bytes());
    }
}

TEST_P(ReplicasOnGpus, ChangeNoBitOfAnyKindOfExperts) {
  const auto check = [&](const char* what, const std::function<void(RunConfig&)>& change) {
    SCOPED_TRACE(what);
    RunConfig config = hot(GetParam());
    change(config);
    expect_same_bits(replicated(config, 2), replicated(config, 0));
  };
  check("sharded parameters", [](RunConfig& c) { c.parallel.data_parallel_sharding_strategy = "optim_grads_params"; });
  check("bounded pools", [](RunConfig& c) {
    c.model.moe.moe_router_topk = 4;
    c.model.moe.moe_pool_factor = 1;
  });
  check("shared experts that overlap", [](RunConfig& c) {
    c.model.moe.moe_shared_expert_intermediate_size = 32;
    c.model.moe.moe_shared_expert_overlap = true;
  });
  check("biases", [](RunConfig& c) { c.model.moe.moe_expert_add_bias = true; });
  check("an expert with all tokens", [](RunConfig& c) { c.model.moe.moe_router_selection = "hot"; });
}

// Receive buffers too small for the hottest rank's rows are large enough if other ranks compute some of them.
TEST_P(ReplicasOnGpus, SpreadRowsOverRanks) {
  RunConfig config = hot(GetParam());
  config.model.moe.moe_router_topk = 4;
  config.model.moe.moe_router_selection = "skew";
  config.model.moe.moe_router_skew = 0.8;
  config.model.moe.moe_pool_factor = 1.3;  // of the balanced load: the hottest rank has 1.8 times, with replicas 1.1
  EXPECT_GT(std::ranges::max(replicated(config, 0).passes), 1);
  EXPECT_EQ(std::ranges::max(replicated(config, 4).passes), 1);
}

class ReplicasInFloat64 : public ReplicasOnGpus {};
INSTANTIATE_TEST_SUITE_P(Dtype, ReplicasInFloat64, ::testing::Values("float64"));

TEST_P(ReplicasInFloat64, TrainAsOnTheCpu) {
  for (const bool deterministic : {false, true}) {
    RunConfig config = hot(GetParam());
    config.parallel.deterministic = deterministic;
    config.model.moe.moe_replicated_experts = 2;
    expect_trained_as_on_cpu(config, 5);
  }
}

}  // namespace
}  // namespace witan::testing
