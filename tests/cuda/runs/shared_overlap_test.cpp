// moe_shared_expert_overlap on GPUs: eager and recorded steps have the bits of steps in which shared experts compute
// after the routed ones, and use the planned memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "cuda/runs/engine_support.h"

namespace witan::testing {
namespace {

constexpr int64_t kOverlapSteps = 6;  // the last of them are replays

struct OverlapVariant {
  std::string name;
  void (*change)(RunConfig&);
};

const OverlapVariant kOverlapVariants[] = {
    {"Small", [](RunConfig& c) { c.model.num_layers = 1; }},
    {"Gated", [](RunConfig& c) { c.model.moe.moe_shared_expert_gate = true; }},
    {"LatentGated",
     [](RunConfig& c) {
       c.model.moe.moe_shared_expert_gate = true;
       c.model.moe.moe_latent_size = 32;
     }},
    {"SharedExpertsAgain",
     [](RunConfig& c) {
       c.model.recompute_granularity = "selective";
       c.model.recompute_modules = "shared_experts,moe_act";
     }},
    {"MoeAgain",
     [](RunConfig& c) {
       c.model.recompute_granularity = "selective";
       c.model.recompute_modules = "moe";
     }},
    {"LayersAgain", [](RunConfig& c) { c.model.recompute_granularity = "full"; }},
    {"Fsdp", [](RunConfig& c) { c.parallel.data_parallel_sharding_strategy = "optim_grads_params"; }},
    {"WideSharedExperts",  // shared experts that take longer than the rows
     [](RunConfig& c) {
       c.model.hidden_size = 256;
       c.model.moe.moe_shared_expert_intermediate_size = 1024;
     }},
    {"OverTensorRanks",  // shared experts with collectives of their own
     [](RunConfig& c) {
       c.parallel.tensor_model_parallel_size = 2;
       c.parallel.sequence_parallel = true;
       c.parallel.expert_tensor_parallel_size = 1;
       c.model.vocab_size = 212;
     }},
};

class SharedOverlapOnGpus : public EngineOnGpus, public ::testing::WithParamInterface<OverlapVariant> {
 protected:
  void SetUp() override {
    EngineOnGpus::SetUp();
    if (cuda::devices() < 2) GTEST_SKIP() << "needs 2 GPUs, there are " << cuda::devices();
  }
  static RunConfig config_of(const std::string& dtype) {
    RunConfig config = gpu_config(dtype);
    config.parallel.ranks = 2;
    config.parallel.expert_model_parallel_size = 2;
    config.model.moe.moe_shared_expert_intermediate_size = 96;
    config.model.moe.moe_shared_expert_overlap = true;
    GetParam().change(config);
    return config;
  }
};

TEST_P(SharedOverlapOnGpus, HasTheBitsWithoutOverlap) {
  for (const char* dtype : {"float32", "bfloat16"})
    for (const bool recorded : {true, false}) {
      SCOPED_TRACE(cat(dtype, recorded ? ", recorded" : ", eager"));
      RunConfig config = config_of(dtype);
      config.parallel.deterministic = true;
      config.parallel.cuda_graph = recorded;
      const Trajectory overlapping = run_engine(config, kOverlapSteps);
      EXPECT_EQ(overlapping.arena_high_water, make_plan(resolve(config, {})).arena_bytes());
      config.model.moe.moe_shared_expert_overlap = false;
      expect_same_bits(overlapping, run_engine(config, kOverlapSteps));
    }
}

TEST_P(SharedOverlapOnGpus, AgreesWithTheCpu) {
  expect_trained_as_on_cpu(config_of("float64"), kOverlapSteps);
}

INSTANTIATE_TEST_SUITE_P(Of, SharedOverlapOnGpus, ::testing::ValuesIn(kOverlapVariants),
                         [](const auto& variant) { return variant.param.name; });

using BoundedSharedOverlapOnGpus = EngineOnGpus;

TEST_F(BoundedSharedOverlapOnGpus, RerunStepsHaveTheBitsWithoutOverlap) {
  if (cuda::devices() < 2) GTEST_SKIP() << "needs 2 GPUs, there are " << cuda::devices();
  RunConfig config = gpu_config("bfloat16");
  config.model.vocab_size = 7;
  config.model.moe.moe_router_load_balancing_type = "none";
  config.model.moe.moe_shared_expert_intermediate_size = 96;
  config.model.moe.moe_shared_expert_overlap = true;
  config.model.moe.moe_pool_factor = 1;
  config.parallel = {.ranks = 2, .expert_model_parallel_size = 2, .threads = 1, .deterministic = true};
  config.parallel.device = "cuda";
  const Trajectory overlapping = run_engine(config, kOverlapSteps);
  EXPECT_GT(std::ranges::max(overlapping.passes), 1) << "no step overflowed: nothing is shown";
  config.model.moe.moe_shared_expert_overlap = false;
  expect_same_bits(overlapping, run_engine(config, kOverlapSteps));
}

}  // namespace
}  // namespace witan::testing
