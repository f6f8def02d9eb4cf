// Small models whose steps run on GPUs, and comparisons of their results.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "train/step/run_support.h"
#include "witan/planner/plan.h"
#include "witan/tensor/cuda.h"
#include "witan/train/config/resolve.h"

namespace witan::testing {

class EngineOnGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::devices() == 0) GTEST_SKIP() << cuda::why_none();
  }
};

inline RunConfig gpu_config(const std::string& dtype) {
  RunConfig config;
  config.model.num_layers = 2;
  config.model.hidden_size = 64;
  config.model.vocab_size = 211;
  config.model.dtype = dtype;
  config.model.mlp.ffn_hidden_size = 96;
  config.model.moe.num_experts = 4;
  config.model.moe.moe_z_loss_coeff = 1e-3;
  config.data.seq_length = 64;
  config.train.train_iters = 8;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 8;
  config.parallel = {1, 1, 1};
  config.parallel.device = "cuda";
  return config;
}

inline Trajectory on_cpu(RunConfig config, int64_t steps) {
  config.parallel.device = "cpu";
  return run_engine(config, steps);
}

inline void expect_near(const std::vector<double>& found, const std::vector<double>& expected, double relative) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], relative * std::abs(expected[i])) << "step " << i;
}

// Compares in float64.
inline Trajectory expect_values_of_the_cpu(const RunConfig& config, int64_t steps) {
  Trajectory gpus = run_engine(config, steps);
  const Trajectory cpu = on_cpu(config, steps);
  expect_near(gpus.losses, cpu.losses, 1e-9);
  expect_near(gpus.norms, cpu.norms, 1e-8);
  expect_near(gpus.balances, cpu.balances, 1e-9);
  return gpus;
}

// Also checks that the planned memory was used.
inline void expect_trained_as_on_cpu(const RunConfig& config, int64_t steps) {
  EXPECT_EQ(expect_values_of_the_cpu(config, steps).arena_high_water, make_plan(resolve(config, {})).arena_bytes());
}

inline void expect_recorded_bits_of_eager_steps(RunConfig config, int64_t steps) {
  config.parallel.deterministic = true;
  RunConfig eager = config;
  eager.parallel.cuda_graph = false;
  expect_same_bits(run_engine(config, steps), run_engine(eager, steps));
}

}  // namespace witan::testing
