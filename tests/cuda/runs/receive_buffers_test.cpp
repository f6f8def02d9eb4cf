// moe_pool_factor on GPUs: recorded steps that overflow are rerun in several passes, with the bits of unbounded receive
// buffers.
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/runs/engine_support.h"

namespace witan::testing {
namespace {

class BoundedPoolsOnGpus : public EngineOnGpus, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    EngineOnGpus::SetUp();
    if (cuda::devices() < 2) GTEST_SKIP() << "needs 2 GPUs, there are " << cuda::devices();
  }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, BoundedPoolsOnGpus, ::testing::Values("float32", "bfloat16", "float64"));

TEST_P(BoundedPoolsOnGpus, HaveTheBitsOfUnboundedOnes) {
  for (const char* granularity : {"none", "full"})
    for (const bool deterministic : {true, false}) {
      SCOPED_TRACE(cat("recompute ", granularity, deterministic ? ", deterministic" : ""));
      RunConfig config = gpu_config(GetParam());
      config.model.vocab_size = 7;
      config.model.recompute_granularity = granularity;
      config.model.moe.moe_router_load_balancing_type = "none";
      config.parallel = {.ranks = 2, .expert_model_parallel_size = 2, .threads = 1, .deterministic = deterministic};
      config.parallel.device = "cuda";
      const Trajectory unbounded = run_engine(config, 5);
      config.model.moe.moe_pool_factor = 1;
      const Trajectory bounded = run_engine(config, 5);
      EXPECT_GT(std::ranges::max(bounded.passes), 1) << "no step overflowed: nothing is shown";
      expect_same_bits(unbounded, bounded);
      EXPECT_EQ(bounded.arena_high_water, make_plan(resolve(config, {})).arena_bytes());
    }
}

}  // namespace
}  // namespace witan::testing
