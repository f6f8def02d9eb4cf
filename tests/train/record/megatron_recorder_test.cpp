#include "witan/train/record/megatron_recorder.h"

#include <gtest/gtest.h>

#include <limits>

#include "train/step/run_support.h"

namespace witan {
namespace {

class MegatronRecorderTest : public ::testing::Test {
 protected:
  MegatronRecorderTest() {
    config_.train.log_interval = 4;
    config_.train.train_iters = 100;
    config_.parallel.ranks = 2;
  }
  MegatronRecorder recorder() {
    return {resolve(config_, {}), [this](const std::string& text) { said_.push_back(text); }};
  }
  static TrainState at(int64_t step) {
    TrainState state;
    state.step = step;
    state.consumed_samples = 16 * step;
    return state;
  }
  static StepResult step(double loss, bool skipped = false) {
    StepResult result;
    result.loss = loss;
    const MoeConfig moe;
    result.router = testing::router_values(moe, {{"load_balancing_loss", loss / 2}, {"z_loss", loss / 4}});
    result.learning_rate = 0.25;
    result.gradient_norm = 1.5;
    result.skipped = skipped;
    return result;
  }
  // The line without its time.
  std::string line(size_t i) { return said_.at(i).substr(said_.at(i).find(']')); }

  RunConfig config_ = testing::small_config();
  std::vector<std::string> said_;
};

TEST_F(MegatronRecorderTest, ReportsTheGlobalBatchSizeOfTheLastStep) {
  MegatronRecorder recorder = this->recorder();
  StepResult result = step(2);
  result.samples = 8;  // before the ramp grows to 16
  for (int64_t i = 1; i <= 4; ++i) recorder.step(at(i), result, 0.5);
  ASSERT_EQ(said_.size(), 1u);
  EXPECT_NE(line(0).find("global batch size:     8 |"), std::string::npos) << line(0);
}

TEST_F(MegatronRecorderTest, MeansExcludeSkippedIterations) {
  config_.model.moe.moe_z_loss_coeff = 0.1;
  MegatronRecorder recorder = this->recorder();
  recorder.step(at(1), step(2), 0.5);
  recorder.step(at(2), step(std::numeric_limits<double>::quiet_NaN(), true), 0.25);
  recorder.step(at(3), step(100, true), 0.25);
  EXPECT_TRUE(said_.empty());
  recorder.step(at(4), step(4), 1);
  ASSERT_EQ(said_.size(), 1u);
  EXPECT_EQ(line(0),
            "] iteration        4/     100 | consumed samples:           64 | elapsed time per iteration (ms): 500.0 | "
            "learning rate: 2.500000E-01 | global batch size:    16 | lm loss: 3.000000E+00 | load_balancing_loss: "
            "1.500000E+00 | z_loss: 7.500000E-01 | loss scale: 1.0 | grad norm: 1.500 | number of skipped iterations:  "
            " 2 | number of nan iterations:   1 |");
  // The next interval starts from 0, and resuming may shorten it.
  recorder.step(at(8), step(1), 0.125);
  EXPECT_NE(
      line(1).find("(ms): 125.0 | learning rate: 2.500000E-01 | global batch size:    16 | lm loss: 1.000000E+00"),
      std::string::npos);
  EXPECT_NE(line(1).find("skipped iterations:   0"), std::string::npos);
}

TEST_F(MegatronRecorderTest, MtpLossesFollowRouterLosses) {
  config_.train.log_interval = 2;
  MegatronRecorder recorder = this->recorder();
  for (const int64_t at_step : {1, 2}) {
    StepResult result = step(3);
    result.mtp_losses = {static_cast<double>(at_step), 5};
    recorder.step(at(at_step), result, 0.5);
  }
  EXPECT_NE(line(0).find("load_balancing_loss: 1.500000E+00 | mtp_1 loss: 1.500000E+00 | mtp_2 loss: 5.000000E+00 | "
                         "loss scale"),
            std::string::npos)
      << line(0);
}

TEST_F(MegatronRecorderTest, OtherLossesComeLastAndMayBeNegative) {
  config_.train.log_interval = 2;
  MegatronRecorder recorder = this->recorder();
  for (const int64_t at_step : {1, 2}) {
    StepResult result = step(3);
    result.mtp_losses = {5};
    result.other_losses = {{"policy_loss", static_cast<double>(-at_step)}, {"unused_loss", 0}};
    recorder.step(at(at_step), result, 0.5);
  }
  EXPECT_NE(line(0).find(" | mtp_1 loss: 5.000000E+00 | policy_loss: -1.500000E+00 | loss scale"), std::string::npos)
      << line(0);
}

TEST_F(MegatronRecorderTest, TheLoadBalancingLossHasMegatronsName) {
  config_.train.log_interval = 1;
  const auto line_of = [&](const char* type) {
    config_.model.moe.moe_router_load_balancing_type = type;
    recorder().step(at(1), step(3), 0.5);
    return line(said_.size() - 1);
  };
  EXPECT_NE(line_of("aux_loss").find("E+00 | load_balancing_loss: 1.500000E+00 | "), std::string::npos);
  EXPECT_NE(line_of("seq_aux_loss").find("E+00 | seq_load_balancing_loss: 1.500000E+00 | "), std::string::npos);
  EXPECT_EQ(line_of("none").find("balancing"), std::string::npos);
}

TEST_F(MegatronRecorderTest, AnIntervalOfSkippedIterationsHasNoLoss) {
  config_.train.log_interval = 1;
  MegatronRecorder recorder = this->recorder();
  recorder.step(at(1), step(5, true), 1);
  EXPECT_EQ(line(0).find("loss:"), std::string::npos);
}

TEST_F(MegatronRecorderTest, DenseModelsAndOptionalColumns) {
  config_.train.log_interval = 1;
  config_.model.moe.num_experts = 0;
  config_.log.log_throughput = true;
  StepResult result = step(5);
  result.scalars.set(kParamsNorm, 12.5);
  result.scalars.set(kNumZeros, 7);
  MegatronRecorder recorder = this->recorder();
  // 12 B S L H^2 (1 + G/A + S/H + 1.5 F/H + V/(2 L H)) FLOPs on 2 ranks in this many seconds are 1 TFLOP/s.
  const double flops = 12.0 * 16 * 12 * 2 * 32 * 32 * (1 + 0.5 + 12.0 / 32 + 1.5 * 24 / 32 + 61.0 / (2 * 2 * 32));
  recorder.step(at(1), result, flops / 2e12);
  EXPECT_NE(line(0).find("throughput per GPU (TFLOP/s/GPU): 1.0 |"), std::string::npos) << line(0);
  EXPECT_NE(line(0).find("lm loss: 5.000000E+00 | loss scale: 1.0 | grad norm: 1.500 | num zeros: 7.0 | params norm: "
                         "12.500 |"),
            std::string::npos)
      << line(0);
}

// The end in Megatron-LM's words.
TEST_F(MegatronRecorderTest, TheEndHasItsReason) {
  MegatronRecorder recorder = this->recorder();
  for (const RunEnd end : {RunEnd::finished, RunEnd::stopped_early, RunEnd::exit_interval,
                           RunEnd::exit_duration_in_mins, RunEnd::preempted, RunEnd::interrupted})
    recorder.end(end, 40);
  ASSERT_EQ(said_.size(), 6u);
  const auto begins = [&](size_t i, const std::string& with) { return said_[i].starts_with("[" + with); };
  EXPECT_TRUE(begins(0, "after training is done] datetime: "));
  EXPECT_TRUE(begins(1, "after training is done] datetime: "));
  EXPECT_TRUE(begins(2, "exiting program at iteration 40] datetime: "));
  EXPECT_TRUE(begins(3, "exiting program after ") && said_[3].find(" minutes] datetime: ") != std::string::npos);
  EXPECT_TRUE(begins(4, "exiting program after receiving a signal] datetime: "));
  EXPECT_TRUE(begins(5, "exiting program after receiving a signal] datetime: "));
}

TEST_F(MegatronRecorderTest, ReportsMemoryOnce) {
  MegatronRecorder recorder = this->recorder();
  recorder.interval(at(4), {1 << 20, 2 << 20, 3 << 20, 3 << 20}, {});
  ASSERT_EQ(said_.size(), 3u);
  EXPECT_EQ(said_[2],
            "[Rank 0] (after 4 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | reserved: 3.0 | "
            "max reserved: 3.0");
  recorder.interval(at(8), {}, {{"optimizer", 1, 2}});
  ASSERT_EQ(said_.size(), 4u);
  EXPECT_NE(said_[3].find("(1.00, 2.00)"), std::string::npos);
}

}  // namespace
}  // namespace witan
