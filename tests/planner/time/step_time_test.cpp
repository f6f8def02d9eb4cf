#include "witan/planner/time/step_time.h"

#include <gtest/gtest.h>

#include "train/step/run_support.h"
#include "witan/tensor/trace_context.h"

namespace witan {
namespace {

using testing::small_config;

// A machine with round figures: matrix products are bound by FLOPs, norms by bytes.
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

TEST(StepTime, KernelsTakeTheLongerOfTheirBounds) {
  RunConfig config = small_config();
  config.parallel = {2, 1, 1};
  const StepTime time = predict_step(plan_of_kernels(), config, round_ceilings());
  EXPECT_DOUBLE_EQ(time.parts.at("attention"), 2.0);       // 100 GFLOP at 50 GFLOP/s, regardless of its bytes
  EXPECT_DOUBLE_EQ(time.parts.at("head"), 2.0);            // 10 GB at 5 GB/s
  EXPECT_DOUBLE_EQ(time.parts.at("exchange"), 0.5 + 0.5);  // 1 GB at 2 GB/s, 2 GB at 4 GB/s
  EXPECT_DOUBLE_EQ(time.seconds, 5.0) << "of the slower rank";
  EXPECT_DOUBLE_EQ(time.eval_seconds, 0.5);
}

TEST(StepTime, CountsTimeBetweenKernels) {
  Ceilings ceilings = round_ceilings();
  ceilings.between = 0.25;
  RunConfig config = small_config();
  config.parallel = {2, 1, 1};
  const StepTime time = predict_step(plan_of_kernels(), config, ceilings);
  EXPECT_DOUBLE_EQ(time.parts.at("attention"), 2.5);
  EXPECT_DOUBLE_EQ(time.seconds, 6.0);
}

// Kernel calls with almost only fixed cost dominate a tiny model's step.
TEST(StepTime, CpuCallsHaveAFixedCost) {
  using Phase = TraceContext::Phase;
  Plan plan;
  plan.micro_batches = 1;
  plan.ranks.resize(1);
  RankPlan& rank = plan.ranks[0];
  rank.calls = {
      {{.phase = Phase::forward, .part = "attention", .name = "gemm", .shape = {64, 16, 8, 1}}, {200e6, 0, 0, 100}},
      {{.phase = Phase::forward, .part = "head", .name = "norm"}, {1, 1e6, 0, 50}},
      {{.phase = Phase::backward, .part = "other", .name = "unknown"}, {0, 5e6, 0, 10}},
      {{.phase = Phase::backward, .group = "replicate", .name = "all_reduce"}, {0, 2e6, 0, 20}}};
  rank.step = {{"attention", {{"gemm", {200e6, 0, 0, 100}}}},
               {"head", {{"norm", {1, 1e6, 0, 50}}}},
               {"other", {{"unknown", {0, 5e6, 0, 10}}}}};
  rank.sent = {{"replicate", {{"all_reduce", 2e6}}}};
  rank.eval_calls = {{{.phase = Phase::forward, .part = "head", .name = "norm"}, {0, 0, 0, 50}}};
  RunConfig config = small_config();
  config.parallel = {2, 1, 1};
  Ceilings ceilings = round_ceilings();
  ceilings.calls.kernels = {{"gemm", {1e-5, 1e-11, 1e-10}}, {"norm", {2e-5, 0, 1e-9}}};
  ceilings.calls.exchange_call = 1e-4;
  ceilings.calls.between_call = 1e-6;
  const StepTime time = predict_step(plan, config, ceilings);
  // 100 calls of 11 us, 200 MFLOP at 100 GFLOP/s, 25 M values with sums of 8 terms.
  EXPECT_NEAR(time.parts.at("attention"), 100 * 11e-6 + 2e-3 + 2.5e-3, 1e-12);
  EXPECT_NEAR(time.parts.at("head"), 50 * 21e-6 + 1e-3, 1e-12);
  EXPECT_NEAR(time.parts.at("other"), 5e6 / 3e9 + 10e-6, 1e-12) << "not measured per call: at the mean rate";
  EXPECT_NEAR(time.parts.at("exchange"), 2e6 / 2e9 + 20e-4, 1e-12);
  EXPECT_NEAR(time.eval_seconds, 50 * 21e-6, 1e-12);
  double sum = 0;
  for (const auto& [part, seconds] : time.parts) sum += seconds;
  EXPECT_NEAR(time.seconds, sum, 1e-12);
  ceilings.between = 0.5;  // with large kernels it is a share
  EXPECT_NEAR(predict_step(plan, config, ceilings).parts.at("head"), 1.5 * (50 * 20e-6 + 1e-3), 1e-12);
}

// LAPACK computes QR and eigenvectors on one CPU thread, far more slowly than products.
TEST(StepTime, LapackUsesOneThreadAtAFewPercentOfThePeak) {
  Plan plan = plan_of_kernels();
  plan.ranks[0].step = {{"optimizer", {{"renew_basis", {6e9, 1e6}}, {"inverse_root", {3e9, 0}}}}};
  RunConfig config = small_config();
  config.parallel = {2, 1, 4};
  Ceilings ceilings = round_ceilings();
  ceilings.load.threads = 4;  // 25 GFLOP/s each
  config.optimizer.optimizer = "soap";
  EXPECT_NEAR(predict_step(plan, config, ceilings).parts.at("optimizer"), 6 / (0.08 * 25), 1e-9);
  config.optimizer.optimizer = "shampoo";
  EXPECT_NEAR(predict_step(plan, config, ceilings).parts.at("optimizer"), 9 / (0.08 * 25), 1e-9);
  config.optimizer.shampoo_root = "newton";
  EXPECT_NEAR(predict_step(plan, config, ceilings).parts.at("optimizer"), 6 / (0.08 * 25), 1e-9);
  ceilings.calls = typical_cpu_speeds(25e9, 1e9, 4);  // no measured speed for these kernels
  EXPECT_NEAR(predict_step(plan, config, ceilings).parts.at("optimizer"), 6 / (0.08 * 25), 1e-9);
}

// A GPU multiplies bfloat16 many times faster than the float32 of these optimizers.
TEST(StepTime, MatrixOptimizersMultiplyInFloat32) {
  Plan plan;
  plan.ranks.resize(1);
  for (const char* part : {"attention", "optimizer"})
    plan.ranks[0].calls[{.part = part, .name = "batched_gemm"}] = {80e12, 0, 0, 1};
  RunConfig config = small_config();
  config.parallel = {1, 1, 1};
  Ceilings ceilings;
  ceilings.load = {"bfloat16", 1, 1, "NVIDIA H100"};
  ceilings.fma_flops = 800e12;
  ceilings.f32_flops = 50e12;
  ceilings.copy_bytes = 1e12;
  ceilings.speeds.emplace();
  ceilings.speeds->kernels["batched_gemm"] = {0, 640e12, 1e12};
  for (const auto& [optimizer, seconds] : {std::pair("soap", 1.6), {"shampoo", 1.6}, {"muon", 0.125}}) {
    config.optimizer.optimizer = optimizer;
    const StepTime time = predict_step(plan, config, ceilings);
    EXPECT_DOUBLE_EQ(time.parts.at("attention"), 0.125) << optimizer;
    EXPECT_DOUBLE_EQ(time.parts.at("optimizer"), seconds) << optimizer;
  }
}

TEST(StepTime, UnmeasuredKernelsRunAtTheMeanRate) {
  Plan plan = plan_of_kernels();
  plan.ranks[0].step = {{"attention", {{"unheard of", {0, 6e9}}}}};
  RunConfig config = small_config();
  config.parallel = {2, 1, 1};
  // All kernels together: 51 GFLOP and 6 GB in 2 s, closer to the ceiling of bytes (30 %) than of FLOPs (26 %).
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

// 16 GPUs on two hosts, with kernels of 0.3 s per micro-batch, 0.2 s of them in the backward.
class ClusterStepTest : public ::testing::Test {
 protected:
  using Phase = TraceContext::Phase;

  ClusterStepTest() {
    config_.parallel = {16, 8, 1};
    plan_.ranks.resize(1);
    plan_.stages = {StageLayers::all(10)};
    plan_.micro_batches = 1;
    ceilings_.load = {"bfloat16", 16, 1, "h100"};
    ceilings_.speeds.emplace();
    ceilings_.speeds->kernels = {{"", {1e-3, 1e12, 1e12}}, {"gemm", {0, 1e12, 0}}};
    ceilings_.speeds->exchanges = {{"", {0, 0, kRate}}};
  }
  // Exchanges without overlap; `seconds` determines the bytes that a rank sends.
  double waited(CallKind kind, double seconds, double calls = 1e6) {
    plan_.ranks[0].calls = {{{.phase = Phase::forward, .part = "attention", .name = "gemm"}, {0.1e12, 0, 0, 1}},
                            {{.phase = Phase::backward, .part = "attention", .name = "gemm"}, {0.2e12, 0, 0, 1}}};
    plan_.ranks[0].calls[kind] = {0, seconds * kRate, 0, calls};
    const StepTime time = predict_step(plan_, config_, ceilings_, &cluster_);
    EXPECT_NEAR(time.parts.at("attention"), 0.3, 1e-12);
    return time.seconds - 0.3;
  }
  static CallKind reduction(bool beside) {
    return {.phase = Phase::backward, .beside = beside, .group = "expert", .name = "all_reduce"};
  }

  static constexpr double kRate = 300e9;
  const Cluster cluster_ = {find_gpu("h100"), 8, 450e9, 50e9};
  RunConfig config_ = small_config();
  Plan plan_;
  Ceilings ceilings_;
};

TEST_F(ClusterStepTest, ReductionsOverlapTheLastBackward) {
  EXPECT_NEAR(waited(reduction(true), 0.15), 0, 1e-6);
  EXPECT_NEAR(waited(reduction(true), 0.5), 0.3, 1e-6);
  EXPECT_NEAR(waited(reduction(true), 0.15, 3), 0.05, 1e-9) << "the last one overlaps nothing";
  EXPECT_NEAR(waited(reduction(false), 0.15), 0.15, 1e-9);
  plan_.micro_batches = 2;  // half of the backward belongs to the last micro-batch
  EXPECT_NEAR(waited(reduction(true), 0.15), 0.05, 1e-6);
  config_.parallel.data_parallel_sharding_strategy = "optim_grads_params";
  EXPECT_NEAR(waited(reduction(true), 0.15), 0, 1e-6) << "each micro-batch of sharded gradients";
}

TEST_F(ClusterStepTest, OverlappedCommunicationSlowsComputation) {
  ceilings_.speeds->beside = 0.5;
  EXPECT_NEAR(waited(reduction(true), 0.15), 0.075, 1e-6);
  EXPECT_NEAR(waited(reduction(true), 0.5), 0.3 + 0.1, 1e-6) << "not more than there is";
}

TEST_F(ClusterStepTest, ParameterGathersOverlapTheForward) {
  const auto gather = [](bool beside) {
    return CallKind{.phase = Phase::forward, .beside = beside, .group = "expert", .name = "all_gather_uneven"};
  };
  EXPECT_NEAR(waited(gather(true), 0.08), 0, 1e-6);
  EXPECT_NEAR(waited(gather(true), 0.25), 0.15, 1e-6);
  EXPECT_NEAR(waited(gather(false), 0.08), 0.08, 1e-6);
}

TEST_F(ClusterStepTest, DispatchIsNotOverlapped) {
  EXPECT_NEAR(waited({.phase = Phase::forward, .group = "expert", .name = "all_to_all"}, 0.05), 0.05, 1e-9);
}

TEST_F(ClusterStepTest, GpuCallsHaveAFixedCost) {
  EXPECT_NEAR(waited({.phase = Phase::forward, .part = "attention of nothing", .name = "norm"}, 0, 20), 0.02, 1e-9);
  ceilings_.speeds->exchanges[""] = {1e-3, 1e-4, kRate};
  CallKind kind{.phase = Phase::forward, .group = "expert", .name = "all_reduce", .shape = {0, 8}};
  EXPECT_NEAR(waited(kind, 0, 20), 20 * (1e-3 + 6e-4), 1e-9) << "six more ranks than two";
}

// Four fifths of 64 GB/s move activations beside a forward of 0.1 s and a backward of 0.2 s.
TEST_F(ClusterStepTest, OffloadedActivationsMoveBesideThePasses) {
  const auto waited_for = [&](double seconds) {
    plan_.ranks[0].offloaded = {0.8 * 64e9 * seconds};
    return waited({.phase = Phase::forward, .part = "nothing", .name = "norm"}, 0, 0);
  };
  EXPECT_NEAR(waited_for(0.09), 0, 1e-9);
  EXPECT_NEAR(waited_for(0.15), 0.05, 1e-9) << "only the forward is too short";
  EXPECT_NEAR(waited_for(0.3), 0.2 + 0.1, 1e-9);
  EXPECT_NEAR(predict_step(plan_, config_, ceilings_, &cluster_).parts.at("offload"), 0.3, 1e-9);
}

// Groups that span hosts run at the rate of their adapters, and each call has the network's latency.
TEST_F(ClusterStepTest, ExchangesBetweenHostsUseTheNetwork) {
  const Cluster small{find_gpu("h100"), 4, 450e9, 50e9};
  plan_.ranks[0].calls = {{{.phase = Phase::forward, .group = "expert", .name = "all_to_all"}, {0, 7e9, 0, 100}}};
  // Four of the group's seven other ranks are on the other host.
  EXPECT_NEAR(predict_step(plan_, config_, ceilings_, &small).seconds, 4e9 / 50e9 + 100 * 1e-5, 1e-9);
}

// The second of two stages has a head that takes as long as all its layers.
TEST_F(ClusterStepTest, PipelineStagesAreSimulated) {
  config_.parallel = {2, 1, 1};
  config_.parallel.pipeline_model_parallel_size = 2;
  plan_.micro_batches = 4;
  plan_.stages = {StageLayers::all(5), StageLayers::all(5)};
  plan_.ranks.resize(2);
  plan_.ranks[1].rank = 1;
  for (size_t rank : {0, 1}) {
    const double times = rank == 0 ? 1 : 2;
    plan_.ranks[rank].calls = {
        {{.phase = Phase::forward, .part = "mlp", .name = "gemm"}, {times * 4 * 0.1e12, 0, 0, 4}},
        {{.phase = Phase::backward, .part = "mlp", .name = "gemm"}, {times * 4 * 0.2e12, 0, 0, 4}},
        {{.phase = Phase::optimizer, .part = "optimizer", .name = "gemm"}, {0.05e12, 0, 0, 1}}};
  }
  plan_.ranks[0].calls[{.phase = Phase::forward, .group = "pipeline", .name = "send"}] = {0, 4 * 0.01 * kRate, 0, 4};
  const StepTime time = predict_step(plan_, config_, ceilings_, &cluster_);
  // The time is a forward and a transfer, four micro-batches of the second stage, a transfer and a backward; the rest
  // overlaps.
  EXPECT_GE(time.seconds, 0.1 + 0.01 + 4 * 0.6 + 0.01 + 0.2 + 0.05 - 1e-9);
  EXPECT_LE(time.seconds, 0.1 + 4 * 0.6 + 0.2 + 0.05 + 8 * 0.01 + 1e-9);
  EXPECT_NEAR(time.parts.at("bubble"), time.seconds - 4 * 0.6 - 0.05, 1e-9) << "in the second stage";
}

TEST(StepTime, RunsConsistOfStepsAndEvaluations) {
  RunConfig config = small_config();
  config.parallel = {2, 1, 1};
  config.train.train_iters = 120;
  config.train.eval_interval = 10;
  config.train.eval_iters = 4;
  config.train.global_batch_size = 16;  // micro-batches of 2: 4 per rank
  StepTime step;
  step.seconds = 2;
  step.eval_seconds = 0.5;
  EXPECT_DOUBLE_EQ(predict_run(step, config, 20), 100 * 2 + 10 * 4 * 4 * 0.5);
  EXPECT_DOUBLE_EQ(predict_run(step, config, 500), 0);
  config.train.eval_interval = 0;
  EXPECT_DOUBLE_EQ(predict_run(step, config, 20), 100 * 2 + 4 * 4 * 0.5) << "one evaluation, at the end";
  // An evaluation never exceeds the validation split: 6 samples are two micro-batches of 2 on each rank, the last one
  // padded.
  EXPECT_DOUBLE_EQ(predict_run(step, config, 20, 6), 100 * 2 + 2 * 0.5);
  EXPECT_DOUBLE_EQ(predict_run(step, config, 20, 1), 100 * 2 + 0.5);
  EXPECT_DOUBLE_EQ(predict_run(step, config, 20, 1000), 100 * 2 + 4 * 4 * 0.5);
}

// The probes measure every kernel that a plan counts; the time of an unmeasured kernel would be guessed.
TEST(Ceilings, MeasureEveryKernelOfAStep) {
  const Ceilings ceilings = measure_ceilings({"float32", 2, 1});
  EXPECT_GT(ceilings.fma_flops, 0);
  EXPECT_GT(ceilings.copy_bytes, 0);
  EXPECT_GE(ceilings.between, 0);
  EXPECT_TRUE(ceilings.calls.valid());
  EXPECT_GT(ceilings.calls.exchange_call, 0);
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
          ASSERT_TRUE(ceilings.calls.kernels.contains(kernel)) << kernel;
          EXPECT_NE(ceilings.calls.kernels.at(kernel), CallSpeed()) << kernel;
        }
      EXPECT_GT(predict_step(plan, config, ceilings).seconds, 0);
    }
}

}  // namespace
}  // namespace witan
