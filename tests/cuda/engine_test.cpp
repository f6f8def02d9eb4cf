// Whole steps on GPUs: against the CPU, recorded against eager, and to the bit where that is promised.
#include <gmock/gmock.h>

#include <tuple>

#include "support/message_of.h"
#include "train/run_support.h"
#include "witan/tensor/cuda.h"

namespace witan::testing {
namespace {

class EngineOnGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::devices() == 0) GTEST_SKIP() << cuda::why_none();
  }
};

RunConfig small_config(const std::string& dtype) {
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

Trajectory on_cpu(RunConfig config, int64_t steps) {
  config.parallel.device = "cpu";
  return run_engine(config, steps);
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected, double relative) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], relative * std::abs(expected[i])) << "step " << i;
}

void expect_same_bits(const Trajectory& a, const Trajectory& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_EQ(a.weights, b.weights);
}

TEST_F(EngineOnGpus, TrainAsTheCpuDoes) {
  // float64 tells wrong gradients from rounding; the other two are what people train in.
  for (const auto& [dtype, tolerance] :
       {std::pair{"float64", 1e-9}, std::pair{"float32", 1e-4}, std::pair{"bfloat16", 2e-2}}) {
    SCOPED_TRACE(dtype);
    const RunConfig config = small_config(dtype);
    const Trajectory gpu = run_engine(config, 6), cpu = on_cpu(config, 6);
    expect_near(gpu.losses, cpu.losses, tolerance);
    expect_near(gpu.norms, cpu.norms, 10 * tolerance);
  }
}

TEST_F(EngineOnGpus, OtherModelsTrainAsOnTheCpuToo) {
  const auto check = [](const char* what, const auto& change) {
    SCOPED_TRACE(what);
    RunConfig config = small_config("float64");
    change(config);
    const Trajectory gpu = run_engine(config, 3), cpu = on_cpu(config, 3);
    expect_near(gpu.losses, cpu.losses, 1e-9);
    expect_near(gpu.norms, cpu.norms, 1e-8);
    expect_near(gpu.dropped, cpu.dropped, 1e-12);
  };
  check("dense", [](RunConfig& c) { c.model.moe.num_experts = 0; });
  check("LayerNorm, biases, GELU, learned positions", [](RunConfig& c) {
    c.model.moe.num_experts = 0;
    c.model.norm.normalization = "LayerNorm";
    c.model.norm.norm_bias = true;
    c.model.add_bias_linear = true;
    c.model.mlp.swiglu = false;
    c.model.attention.position_embedding_type = "learned_absolute";
    c.model.attention.max_position_embeddings = 64;
  });
  check("dropout", [](RunConfig& c) {
    c.model.hidden_dropout = 0.1;
    c.model.attention.attention_dropout = 0.1;
  });
  check("capacity", [](RunConfig& c) { c.model.moe.moe_expert_capacity_factor = 1.0; });
  check("sequential experts", [](RunConfig& c) { c.model.moe.moe_grouped_gemm = false; });
  check("selective recomputation", [](RunConfig& c) { c.model.recompute_granularity = "selective"; });
  check("full recomputation", [](RunConfig& c) { c.model.recompute_granularity = "full"; });
  check("SGD", [](RunConfig& c) { c.optimizer.optimizer = "sgd"; });
  check("documents", [](RunConfig& c) { c.data.reset_attention_mask = true; });
  check("rotary positions of neighbours, untied", [](RunConfig& c) {
    c.model.attention.rotary_interleaved = true;
    c.model.attention.rotary_percent = 0.5;
    c.model.untie_embeddings_and_output_weights = true;
  });
}

// What a recorded step does is what it did when it was recorded, on other tokens.
TEST_F(EngineOnGpus, ARecordedStepHasTheBitsOfAnEagerOne) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    RunConfig recorded = small_config(dtype), eager = recorded;
    eager.parallel.cuda_graph = false;
    for (RunConfig* config : {&recorded, &eager}) config->parallel.deterministic = true;
    expect_same_bits(run_engine(recorded, 6), run_engine(eager, 6));
  }
}

TEST_F(EngineOnGpus, DeterministicRunsRepeatToTheBit) {
  RunConfig config = small_config("bfloat16");
  config.parallel.deterministic = true;
  expect_same_bits(run_engine(config, 6), run_engine(config, 6));
}

TEST_F(EngineOnGpus, ThePlanIsTheArena) {
  for (const char* dtype : {"float32", "bfloat16"})
    for (const char* granularity : {"none", "selective", "full"}) {
      RunConfig config = small_config(dtype);
      config.model.recompute_granularity = granularity;
      EXPECT_EQ(run_engine(config, 3).arena_high_water, make_plan(config).arena_bytes()) << dtype << " " << granularity;
    }
}

TEST_F(EngineOnGpus, GradientsMayBeBfloat16) {
  RunConfig config = small_config("bfloat16");
  config.parallel.gradient_dtype = "bfloat16";
  expect_near(run_engine(config, 6).losses, on_cpu(config, 6).losses, 2e-2);
}

TEST_F(EngineOnGpus, StatesAreChecked) {
  RunConfig config = small_config("bfloat16");
  config.train.check_states = true;
  EXPECT_EQ(run_engine(config, 3).losses.size(), 3u);
}

TEST_F(EngineOnGpus, ReserveWhatThereIsOrSaySo) {
  const std::string said = test::message_of<OutOfMemoryError>([] { Arena::reserve_on_gpu(0, int64_t{1} << 50); });
  EXPECT_THAT(said, ::testing::HasSubstr("GPU 0 has no room for"));
  EXPECT_THAT(said, ::testing::HasSubstr("witan plan"));
}

class LayoutsOnGpus : public EngineOnGpus, public ::testing::WithParamInterface<std::pair<int64_t, int64_t>> {
 protected:
  void SetUp() override {
    EngineOnGpus::SetUp();
    if (cuda::devices() < GetParam().first)
      GTEST_SKIP() << "needs " << GetParam().first << " GPUs, there are " << cuda::devices();
  }
};

TEST_P(LayoutsOnGpus, AgreeWithOneGpu) {
  const auto [ranks, expert] = GetParam();
  for (const auto& [dtype, tolerance] : {std::pair{"float64", 1e-9}, std::pair{"float32", 1e-4}}) {
    RunConfig one = small_config(dtype), many = one;
    many.parallel.ranks = ranks;
    many.parallel.expert_model_parallel_size = expert;
    const Trajectory alone = run_engine(one, 6), together = run_engine(many, 6);
    expect_near(together.losses, alone.losses, tolerance);
    expect_near(together.norms, alone.norms, 10 * tolerance);
    EXPECT_EQ(together.arena_high_water, make_plan(many).arena_bytes()) << dtype;
  }
}

// A micro-batch's masks are drawn by its number in the global batch, whoever runs it.
TEST_P(LayoutsOnGpus, DropWhatOneGpuDrops) {
  RunConfig one = small_config("float64");
  drop(one);
  RunConfig many = one;
  std::tie(many.parallel.ranks, many.parallel.expert_model_parallel_size) = GetParam();
  expect_near(run_engine(many, 3).losses, run_engine(one, 3).losses, 1e-9);
}

TEST_P(LayoutsOnGpus, DeterministicModeGivesTheBitsOfOneGpu) {
  const auto [ranks, expert] = GetParam();
  for (const char* dtype : {"float32", "bfloat16"}) {
    RunConfig one = small_config(dtype), many = one;
    many.parallel.ranks = ranks;
    many.parallel.expert_model_parallel_size = expert;
    for (RunConfig* config : {&one, &many}) config->parallel.deterministic = true;
    expect_same_bits(run_engine(many, 6), run_engine(one, 6));
  }
}

TEST_P(LayoutsOnGpus, StatesAreCheckedOnEveryRank) {
  for (const bool deterministic : {false, true}) {
    RunConfig config = small_config("bfloat16");
    std::tie(config.parallel.ranks, config.parallel.expert_model_parallel_size) = GetParam();
    config.parallel.deterministic = deterministic;
    config.train.check_states = true;
    EXPECT_EQ(run_engine(config, 3).losses.size(), 3u);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, LayoutsOnGpus,
                         ::testing::Values(std::pair{2, 1}, std::pair{2, 2}, std::pair{4, 1}, std::pair{4, 2},
                                           std::pair{4, 4}));

}  // namespace
}  // namespace witan::testing
