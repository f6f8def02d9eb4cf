// Training with 8-bit operands on GPUs, with every recipe: compared with training without them and with the CPU;
// recorded steps have the bits of eager ones.
#include <gtest/gtest.h>

#include "cuda/runs/engine_support.h"

namespace witan::testing {
namespace {

class Fp8OnGpus : public EngineOnGpus {
 protected:
  void SetUp() override {
    EngineOnGpus::SetUp();
    if (cuda::devices() > 0 && !cuda::properties(0).hopper_kernels) GTEST_SKIP() << "needs code of sm_90a";
  }
};

RunConfig fp8_config() {
  RunConfig config = gpu_config("bfloat16");
  config.model.moe.moe_shared_expert_intermediate_size = 32;
  config.model.fp8_format = "e4m3";
  return config;
}

TEST_F(Fp8OnGpus, TrainsAsOnTheCpuAndAsWithoutFp8) {
  for (const char* granularity : {"none", "selective", "full"}) {
    SCOPED_TRACE(granularity);
    RunConfig config = fp8_config();
    config.model.recompute_granularity = granularity;
    const Trajectory found = run_engine(config, 8), cpu = on_cpu(config, 8);
    expect_near(found.losses, cpu.losses, 5e-3);
    expect_near(found.norms, cpu.norms, 5e-2);
    EXPECT_EQ(found.arena_high_water, make_plan(resolve(config, {})).arena_bytes());
    config.model.fp8_format = "none";
    expect_near(found.losses, run_engine(config, 8).losses, 5e-3);
  }
}

// Every other recipe and format. With one scale per tensor, CPU and GPU agree except for the device's roundings, which
// move numbers to their neighbours in 8 bits.
std::vector<RunConfig> other_recipes() {
  std::vector<RunConfig> all;
  for (const auto& [format, recipe] : std::vector<std::pair<const char*, const char*>>{{"hybrid", "blockwise"},
                                                                                       {"e4m3", "tensorwise"},
                                                                                       {"hybrid", "tensorwise"},
                                                                                       {"e4m3", "delayed"},
                                                                                       {"hybrid", "delayed"}}) {
    RunConfig& config = all.emplace_back(fp8_config());
    config.model.fp8_format = format;
    config.model.fp8_recipe = recipe;
    config.model.fp8_amax_compute_algo = "max";
    config.model.fp8_amax_history_len = 3;
  }
  return all;
}

TEST_F(Fp8OnGpus, OtherRecipesTrainAsOnTheCpu) {
  for (const RunConfig& config : other_recipes()) {
    SCOPED_TRACE(config.model.fp8_format + " " + config.model.fp8_recipe);
    const Trajectory found = run_engine(config, 8), cpu = on_cpu(config, 8);
    expect_near(found.losses, cpu.losses, 5e-3);
    expect_near(found.norms, cpu.norms, 5e-2);
    EXPECT_EQ(found.arena_high_water, make_plan(resolve(config, {})).arena_bytes());
  }
}

TEST_F(Fp8OnGpus, RecordedStepsHaveTheBitsOfEagerOnes) {
  for (const bool keep : {false, true}) {
    RunConfig config = fp8_config();
    config.model.fp8_keep_weights = keep;
    expect_recorded_bits_of_eager_steps(config, 5);
  }
  for (const RunConfig& config : other_recipes()) {
    SCOPED_TRACE(config.model.fp8_format + " " + config.model.fp8_recipe);
    expect_recorded_bits_of_eager_steps(config, 5);
  }
}

TEST_F(Fp8OnGpus, KeptWeightsChangeNoBit) {
  RunConfig config = fp8_config();
  config.parallel.deterministic = true;
  const Trajectory each = run_engine(config, 5);
  config.model.fp8_keep_weights = true;
  expect_same_bits(each, run_engine(config, 5));
}

TEST_F(Fp8OnGpus, DividedExpertsHaveTheBitsOfOneRank) {
  if (cuda::devices() < 2) GTEST_SKIP() << "needs 2 GPUs, there are " << cuda::devices();
  std::vector<RunConfig> configs = other_recipes();
  configs.push_back(fp8_config());
  for (RunConfig& config : configs) {
    SCOPED_TRACE(config.model.fp8_format + " " + config.model.fp8_recipe);
    config.parallel.deterministic = true;
    const Trajectory one = run_engine(config, 4);
    config.parallel = {.ranks = 2, .expert_model_parallel_size = 2, .threads = 1, .deterministic = true};
    config.parallel.device = "cuda";
    expect_same_bits(one, run_engine(config, 4));
  }
}

}  // namespace
}  // namespace witan::testing
