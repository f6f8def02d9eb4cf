#include "witan/planner/step_time.h"

#include <gtest/gtest.h>

#include "train/run/run_support.h"

namespace witan {
namespace {

using testing::small_config;

// A machine of round figures: the product of matrices is bound by FLOPs, the norm by bytes.
Ceilings round_ceilings() {
  Ceilings c;
  c.load = {"float32", 2, 1};
  c.fma_flops = 200e9;
  c.copy_bytes = 10e9;
  c.kernels["gemm"] = {50e9, 1e9, 1.0};
  c.kernels["norm"] = {1e9, 5e9, 1.0};
  c.exchange = {{"all_reduce", 2e9}, {"all_to_all_equal", 4e9}};
  return c;
}

Plan plan_of_kernels() {
  Plan plan;
  plan.ranks.resize(2);
  plan.ranks[0].step = {{"attention", {{"gemm", {100e9, 9e9}}}}, {"head", {{"norm", {1e9, 10e9}}}}};
  plan.ranks[0].sent = {{"replicate", {{"all_reduce", 1e9}}}, {"expert", {{"all_to_all", 2e9}}}};
  plan.ranks[0].evaluation = {{"attention", {{"gemm", {25e9, 0}}}}};
  plan.ranks[1].step = {{"attention", {{"gemm", {10e9, 0}}}}};
  return plan;
}

TEST(StepTime, TakesWhatBoundsAKernelOverItsRate) {
  RunConfig config = small_config();
  config.parallel = {2, 1, 1};
  const StepTime time = predict_step(plan_of_kernels(), config, round_ceilings());
  EXPECT_DOUBLE_EQ(time.parts.at("attention"), 2.0);       // 100 GFLOP at 50 GFLOP/s, whatever its bytes
  EXPECT_DOUBLE_EQ(time.parts.at("head"), 2.0);            // 10 GB at 5 GB/s
  EXPECT_DOUBLE_EQ(time.parts.at("exchange"), 0.5 + 0.5);  // 1 GB at 2 GB/s, 2 GB at 4 GB/s
  EXPECT_DOUBLE_EQ(time.seconds, 5.0) << "the slower rank's";
  EXPECT_DOUBLE_EQ(time.eval_seconds, 0.5);
}

TEST(StepTime, CountsWhatIsBetweenKernels) {
  Ceilings ceilings = round_ceilings();
  ceilings.between = 0.25;
  RunConfig config = small_config();
  config.parallel = {2, 1, 1};
  const StepTime time = predict_step(plan_of_kernels(), config, ceilings);
  EXPECT_DOUBLE_EQ(time.parts.at("attention"), 2.5);
  EXPECT_DOUBLE_EQ(time.seconds, 6.0);
}

// QR and eigenvectors are LAPACK's on the CPU: by one thread, far below what products reach.
TEST(StepTime, LapackTakesAThreadAtAFewPercentOfItsMultiplyAdds) {
  Plan plan = plan_of_kernels();
  plan.ranks[0].step = {{"optimizer", {{"renew_basis", {6e9, 1e6}}, {"inverse_root", {3e9, 0}}}}};
  RunConfig config = small_config();
  config.parallel = {2, 1, 4};
  Ceilings ceilings = round_ceilings();
  ceilings.load.threads = 4;  // of 25 GFLOP/s each
  config.optimizer.optimizer = "soap";
  EXPECT_NEAR(lapack_seconds(plan, config, ceilings), 6 / (0.08 * 25), 1e-9);
  EXPECT_NEAR(predict_step(plan, config, ceilings).parts.at("optimizer"), 6 / (0.08 * 25), 1e-9);
  config.optimizer.optimizer = "shampoo";
  EXPECT_NEAR(lapack_seconds(plan, config, ceilings), 9 / (0.08 * 25), 1e-9);
  config.optimizer.shampoo_root = "newton";
  EXPECT_NEAR(lapack_seconds(plan, config, ceilings), 6 / (0.08 * 25), 1e-9);
  ceilings.load.gpu = "h100";
  EXPECT_EQ(lapack_seconds(plan, config, ceilings), 0);
}

// A GPU multiplies bfloat16 many times faster than the float32 of these optimizers.
TEST(StepTime, ProductsOfMatrixOptimizersAreOfFloat32) {
  Plan plan = plan_of_kernels();
  plan.ranks.resize(1);
  plan.ranks[0].sent.clear();
  plan.ranks[0].step = {{"attention", {{"gemm", {80e12, 0}}}}, {"optimizer", {{"gemm", {80e12, 0}}}}};
  RunConfig config = small_config();
  config.parallel = {1, 1, 1};
  Ceilings ceilings;
  ceilings.load = {"bfloat16", 1, 1, "h100"};
  ceilings.fma_flops = 800e12;
  ceilings.f32_flops = 50e12;
  ceilings.copy_bytes = 1e12;
  for (const auto& [optimizer, seconds] : {std::pair("soap", 2.0), {"shampoo", 2.0}, {"muon", 0.125}}) {
    config.optimizer.optimizer = optimizer;
    const StepTime time = predict_step(plan, config, ceilings);
    EXPECT_DOUBLE_EQ(time.parts.at("attention"), 0.125) << optimizer;
    EXPECT_DOUBLE_EQ(time.parts.at("optimizer"), seconds) << optimizer;
  }
}

TEST(StepTime, KernelsThatWereNotMeasuredGoAtTheMeanRate) {
  Plan plan = plan_of_kernels();
  plan.ranks[0].step = {{"attention", {{"unheard of", {0, 6e9}}}}};
  RunConfig config = small_config();
  config.parallel = {2, 1, 1};
  // All kernels together: 51 GFLOP and 6 GB in 2 s, nearer to the ceiling of bytes (30 %) than of FLOPs (26 %).
  EXPECT_DOUBLE_EQ(predict_step(plan, config, round_ceilings()).parts.at("attention"), 2.0);
}

TEST(StepTime, RanksBeyondTheCoresTakeTurns) {
  RunConfig config = small_config();
  config.parallel = {8, 1, 1};
  const StepTime step = predict_step(plan_of_kernels(), config, round_ceilings());
  EXPECT_DOUBLE_EQ(step.seconds, 4 * 5.0);
  EXPECT_DOUBLE_EQ(step.eval_seconds, 4 * 0.5);
  EXPECT_EQ(load_of(config, 2), (Load{"float32", 2, 1}));
  config.parallel = {2, 1, 8};
  EXPECT_EQ(load_of(config, 4), (Load{"float32", 2, 2}));
  EXPECT_EQ(load_of(config, 1), (Load{"float32", 1, 1}));
  EXPECT_EQ(load_of(config, 64), (Load{"float32", 2, 8}));
}

// 16 GPUs of two hosts, whose kernels take 0.3 s of one micro-batch, 0.2 s of them backward.
class ClusterStepTest : public ::testing::Test {
 protected:
  ClusterStepTest() {
    config_.parallel = {16, 8, 1};
    plan_.ranks.resize(1);
    plan_.ranks[0].step = {{"attention", {{"gemm", {0.3 * 0.8 * 0.8 * 989e12, 0}}}}};
    plan_.stages = {StageLayers::all(10)};
    plan_.micro_batches = 1;
  }
  // Of exchanges that are waited for, where a rank sends what takes so long.
  double waited(const char* axis, const char* operation, double seconds) {
    constexpr double kRate = 0.75 * 450e9;  // within a host, and of eight adapters of it together
    plan_.ranks[0].sent = {{axis, {{operation, seconds * kRate}}}};
    const StepTime time = predict_step(plan_, config_, cluster_.ceilings({"bfloat16", 16, 1}), &cluster_);
    EXPECT_NEAR(time.parts.at("attention"), 0.3, 1e-12);
    EXPECT_NEAR(time.parts.at("launches"), 10 * 1e-4, 1e-12);
    const auto found = time.parts.find("exchange");
    const double waited = found == time.parts.end() ? 0 : found->second;
    EXPECT_NEAR(time.seconds, 0.301 + waited, 1e-9);
    return waited;
  }

  const Cluster cluster_ = {find_gpu("h100"), 8, 450e9, 50e9};
  RunConfig config_ = small_config();
  Plan plan_;
};

TEST_F(ClusterStepTest, ReductionsHideBehindTheLastBackward) {
  EXPECT_NEAR(waited("replicate", "all_reduce", 0.15), 0, 1e-9);
  EXPECT_NEAR(waited("replicate", "all_reduce", 0.5), 0.3, 1e-9);
  plan_.micro_batches = 2;  // of half as many blocks: as many launches, and half of the backward for the last
  plan_.stages = {StageLayers::all(5)};
  EXPECT_NEAR(waited("replicate", "all_reduce", 0.15), 0.05, 1e-9);
  config_.parallel.overlap_grad_reduce = false;
  EXPECT_NEAR(waited("replicate", "all_reduce", 0.15), 0.15, 1e-9);
}

TEST_F(ClusterStepTest, GathersOfParametersHideBehindAllKernels) {
  config_.parallel.data_parallel_sharding_strategy = "optim_grads_params";
  EXPECT_NEAR(waited("shard", "all_gather_uneven", 0.25), 0, 1e-9);
  EXPECT_NEAR(waited("shard", "all_gather_uneven", 0.35), 0.05, 1e-9);
  config_.parallel.overlap_param_gather = false;
  EXPECT_NEAR(waited("shard", "all_gather_uneven", 0.25), 0.25, 1e-9);
  config_.parallel.data_parallel_sharding_strategy = "optim";  // of updated values, at the end of a step
  config_.parallel.overlap_param_gather = true;
  EXPECT_NEAR(waited("shard", "all_gather_uneven", 0.25), 0.25, 1e-9);
}

TEST_F(ClusterStepTest, RowsOfExpertsAreWaitedFor) {
  EXPECT_NEAR(waited("expert", "all_to_all", 0.05), 0.05, 1e-9);
}

TEST(StepTime, ARunIsStepsAndLooks) {
  RunConfig config = small_config();
  config.parallel = {2, 1, 1};
  config.train.train_iters = 120;
  config.train.eval_interval = 10;
  config.train.eval_iters = 4;
  config.train.global_batch_size = 16;  // of micro-batches of 2: 4 on a rank
  StepTime step;
  step.seconds = 2;
  step.eval_seconds = 0.5;
  EXPECT_DOUBLE_EQ(predict_run(step, config, 20), 100 * 2 + 10 * 4 * 4 * 0.5);
  EXPECT_DOUBLE_EQ(predict_run(step, config, 500), 0);
  config.train.eval_interval = 0;
  EXPECT_DOUBLE_EQ(predict_run(step, config, 20), 100 * 2 + 4 * 4 * 0.5) << "one look, at the end";
  // Never more than the held-out text has: 6 samples are two micro-batches of 2 on each rank, the last one padded.
  EXPECT_DOUBLE_EQ(predict_run(step, config, 20, 6), 100 * 2 + 2 * 0.5);
  EXPECT_DOUBLE_EQ(predict_run(step, config, 20, 1), 100 * 2 + 0.5);
  EXPECT_DOUBLE_EQ(predict_run(step, config, 20, 1000), 100 * 2 + 4 * 4 * 0.5);
}

// What a plan counts, the probes have measured: a kernel that they miss would be guessed.
TEST(Ceilings, MeasureEveryKernelOfAStep) {
  const Ceilings ceilings = measure_ceilings({"float32", 2, 1});
  EXPECT_GT(ceilings.fma_flops, 0);
  EXPECT_GT(ceilings.copy_bytes, 0);
  EXPECT_GE(ceilings.between, 0);
  EXPECT_GT(ceilings.exchange.at("all_reduce"), 0);
  EXPECT_GT(ceilings.exchange.at("all_to_all_equal"), 0);
  for (const bool usual : {true, false})
    for (const char* recompute : {"none", "selective", "full"}) {
      RunConfig config = small_config();
      config.parallel = {2, 2, 1};
      if (!usual) {
        config = testing::gpt_run_config();
        config.parallel = {2, 1, 1};
        config.optimizer.optimizer = "sgd";
      }
      config.model.recompute_granularity = recompute;
      const Plan plan = make_plan(resolve(config, {}));
      for (const auto& [part, kernels] : plan.ranks[0].step)
        for (const auto& [kernel, cost] : kernels) {
          ASSERT_TRUE(ceilings.kernels.contains(kernel)) << kernel;
          EXPECT_GT(ceilings.kernels.at(kernel).seconds, 0) << kernel;
        }
      EXPECT_GT(predict_step(plan, config, ceilings).seconds, 0);
    }
}

}  // namespace
}  // namespace witan
