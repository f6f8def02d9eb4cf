#include "witan/train/recorder.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/temp_folder.h"
#include "train/run_support.h"

namespace witan {
namespace {

TEST(Recorder, ALineOfMetricsIsTheMeanSinceTheLastOne) {
  const test::TempFolder folder;
  const RunFolder run(folder.path(), "x");
  RunConfig config = testing::small_config();
  config.train.log_interval = 3;
  config.train.train_iters = 8;
  config.model.moe.moe_expert_capacity_factor = 1.25;
  std::FILE* quiet = std::fopen("/dev/null", "w");
  {
    Progress progress(quiet, progress_options(quiet));
    Recorder recorder(config, {.step_flops = 1e9, .ceiling_gflops = 8}, run, progress);
    for (int64_t step = 1; step <= 8; ++step) {
      TrainState state;
      state.step = step;
      StepResult result;
      result.loss = static_cast<double>(step);
      result.expert_counts = {{5, 1, 1, 1}, {2, 2, 2, 2}};
      result.dropped_share = 0.25;
      recorder.step(state, result, 0.5, 0.1);
    }
    TrainState end;
    end.step = 8;
    recorder.evaluation(end, {16 * 0.5, 16}, 4);
  }
  std::fclose(quiet);
  const Metrics metrics = read_metrics(run.metrics());
  ASSERT_EQ(metrics.steps.size(), 3u);
  const int64_t steps[] = {3, 6, 8};
  const double losses[] = {2, 5, 7.5};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(metrics.steps[i].step, steps[i]);
    EXPECT_DOUBLE_EQ(metrics.steps[i].loss, losses[i]);
    EXPECT_DOUBLE_EQ(metrics.steps[i].load_max_over_mean.value(), 2.5);  // 5 where the mean is 2
    EXPECT_EQ(metrics.steps[i].dropped_share, 0.25);
    EXPECT_DOUBLE_EQ(metrics.steps[i].tokens_per_s, 16 * 12 / 0.5);
    EXPECT_NEAR(metrics.steps[i].gflops, 2, 1e-12);
    EXPECT_NEAR(metrics.steps[i].ceiling_share, 0.25, 1e-12);
  }
  ASSERT_EQ(metrics.experts.size(), 3u);
  EXPECT_EQ(metrics.experts[0].load[0], (std::vector<double>{0.625, 0.125, 0.125, 0.125}));
  ASSERT_EQ(metrics.evals.size(), 1u);
  EXPECT_DOUBLE_EQ(metrics.evals[0].loss, 0.5);
  EXPECT_NEAR(metrics.evals[0].bits_per_byte, 8 / std::log(2.0) / 4, 1e-12);
}

}  // namespace
}  // namespace witan
