#include "witan/optim/lr_schedule.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

namespace witan {
namespace {

OptimizerConfig reference_run() {
  OptimizerConfig config;
  config.lr = 6e-4;
  config.min_lr = 6e-5;
  config.lr_warmup_iters = 1000;
  config.lr_decay_iters = 38000;
  return config;
}

// All learning rates in the logs of the published Megatron-LM runs.
TEST(LrSchedule, MatchesRatesInMegatronLogs) {
  const std::map<int64_t, std::string> logged = {
      {20, "1.200000E-05"},   {40, "2.400000E-05"},   {60, "3.600000E-05"},   {80, "4.800000E-05"},
      {100, "6.000000E-05"},  {120, "7.200000E-05"},  {140, "8.400000E-05"},  {160, "9.600000E-05"},
      {180, "1.080000E-04"},  {200, "1.200000E-04"},  {220, "1.320000E-04"},  {240, "1.440000E-04"},
      {260, "1.560000E-04"},  {280, "1.680000E-04"},  {300, "1.800000E-04"},  {1040, "5.999984E-04"},
      {1060, "5.999965E-04"}, {1080, "5.999938E-04"}, {1100, "5.999903E-04"}, {1120, "5.999860E-04"},
      {1140, "5.999809E-04"}};
  for (const auto& [iteration, text] : logged)
    EXPECT_EQ(fmt::format("{:.6E}", learning_rate(reference_run(), 40000, iteration)), text) << iteration;
}

TEST(LrSchedule, HandlesStartAndEnd) {
  OptimizerConfig config = reference_run();
  EXPECT_EQ(learning_rate(config, 40000, 0), 0);
  EXPECT_EQ(learning_rate(config, 40000, 1000), 6e-4);
  EXPECT_DOUBLE_EQ(learning_rate(config, 40000, 19500), 3.3e-4);  // half way down
  EXPECT_EQ(learning_rate(config, 40000, 38000), 6e-5);
  EXPECT_EQ(learning_rate(config, 40000, 40000), 6e-5);
  config.lr_decay_iters = 0;
  EXPECT_EQ(learning_rate(config, 2000, 2000), 6e-5);
  EXPECT_GT(learning_rate(config, 2000, 1999), 6e-5);
}

TEST(LrSchedule, SupportsOtherStyles) {
  OptimizerConfig config = reference_run();
  config.lr_decay_style = "linear";
  EXPECT_DOUBLE_EQ(learning_rate(config, 40000, 500), 3e-4);
  EXPECT_DOUBLE_EQ(learning_rate(config, 40000, 10250), 4.65e-4);
  EXPECT_EQ(learning_rate(config, 40000, 50000), 6e-5);
  config.lr_decay_style = "constant";
  EXPECT_DOUBLE_EQ(learning_rate(config, 40000, 500), 3e-4);
  EXPECT_EQ(learning_rate(config, 40000, 50000), 6e-4);
}

// tests/golden/optim/make_golden.py recorded the rates of Megatron-Core's OptimizerParamScheduler.
TEST(LrSchedule, EveryStyleMatchesMegatronCore) {
  std::ifstream golden(std::string(WITAN_SOURCE_DIR) + "/tests/golden/optim/lr_schedule.tsv");
  std::string header;
  std::getline(golden, header);
  OptimizerConfig config;
  config.lr = 3e-3;
  config.min_lr = 2e-4;
  int64_t end = 0, iteration = 0, rows = 0;
  double rate = 0;
  while (golden >> config.lr_decay_style >> config.lr_wsd_decay_style >> config.lr_warmup_iters >> end >>
         config.lr_wsd_decay_iters >> iteration >> rate) {
    config.lr_decay_iters = rows % 2 ? end : 0;
    EXPECT_NEAR(learning_rate(config, end, iteration), rate, 1e-15)
        << config.lr_decay_style << " " << config.lr_wsd_decay_style << " " << iteration;
    ++rows;
  }
  EXPECT_EQ(rows, 413);
}

// tests/golden/optim/make_golden.py recorded the rates that Megatron-LM's updates use, and the ones it prints.
TEST(LrSchedule, AfterUpdatesRatesMatchMegatronLm) {
  std::ifstream golden(std::string(WITAN_SOURCE_DIR) + "/tests/golden/optim/scheduled_updates.tsv");
  std::string header;
  std::getline(golden, header);
  OptimizerConfig config;
  config.lr = 3e-3;
  config.min_lr = 2e-4;
  config.lr_wsd_decay_style = "linear";
  config.lr_schedule_counter = "updates";
  int64_t end = 0, iteration = 0, updates = 0, rows = 0;
  int skipped = 0;
  double used = 0, printed = 0;
  while (golden >> config.lr_decay_style >> config.lr_warmup_iters >> config.lr_warmup_init >> end >>
         config.lr_wsd_decay_iters >> iteration >> skipped >> used >> printed) {
    if (iteration == 1) updates = 0;
    const auto rate = [&] { return learning_rate(config, end, schedule_position(config, iteration, updates)); };
    EXPECT_NEAR(rate(), used, 1e-15) << config.lr_decay_style << " " << iteration;
    if (skipped == 0) ++updates;
    EXPECT_NEAR(rate(), printed, 1e-15) << config.lr_decay_style << " " << iteration;
    ++rows;
  }
  EXPECT_EQ(rows, 120);
}

// The same script recorded the weight decay of its scheduler.
TEST(LrSchedule, WeightDecayMatchesMegatronCore) {
  std::ifstream golden(std::string(WITAN_SOURCE_DIR) + "/tests/golden/optim/weight_decay.tsv");
  std::string header;
  std::getline(golden, header);
  OptimizerConfig config;
  int64_t iteration = 0, rows = 0;
  double decay = 0;
  while (golden >> config.weight_decay_incr_style >> config.start_weight_decay >> config.weight_decay >> iteration >>
         decay) {
    const double share = weight_decay_share(config, 60, iteration);
    EXPECT_TRUE(share >= 0 && share <= 1) << share;
    EXPECT_NEAR(share * largest_weight_decay(config), decay, 1e-15)
        << config.weight_decay_incr_style << " " << iteration;
    ++rows;
  }
  EXPECT_EQ(rows, 88);
  config = {};
  config.weight_decay_incr_style = "linear";
  config.start_weight_decay = 0.4;
  config.weight_decay = 0;
  EXPECT_EQ(largest_weight_decay(config), 0.4) << "weight decay may decrease as well";
  EXPECT_DOUBLE_EQ(weight_decay_share(config, 60, 15), 0.75);
}

TEST(LrSchedule, ByIterationsTheFirstWarmUpUpdateHasARate) {
  OptimizerConfig config = reference_run();
  EXPECT_DOUBLE_EQ(learning_rate(config, 40000, schedule_position(config, 1, 0)), 6e-7);
  config.lr_warmup_init = 1e-4;
  EXPECT_DOUBLE_EQ(learning_rate(config, 40000, schedule_position(config, 500, 7)), 3.5e-4);
}

TEST(LrSchedule, HandlesNoWarmUpAndRunsThatEndWithinIt) {
  OptimizerConfig config = reference_run();
  config.lr_warmup_iters = 0;
  EXPECT_EQ(learning_rate(config, 40000, 0), 6e-4);
  config = reference_run();
  config.lr_decay_iters = 0;
  EXPECT_DOUBLE_EQ(learning_rate(config, 10, 10), 6e-6);
}

TEST(LrSchedule, CountsSamplesLikeIterations) {
  OptimizerConfig iterations = reference_run(), samples = iterations;
  for (const char* style : {"constant", "linear", "cosine", "inverse-square-root", "WSD"}) {
    iterations.lr_decay_style = samples.lr_decay_style = style;
    iterations.lr_wsd_decay_iters = 4000;
    samples.lr_warmup_iters = 1;  // no effect
    samples.lr_decay_iters = samples.lr_wsd_decay_iters = 2;
    samples.lr_warmup_samples = 1000 * 16;
    samples.lr_decay_samples = 38000 * 16;
    samples.lr_wsd_decay_samples = 4000 * 16;
    for (const int64_t at : {0, 1, 500, 1000, 1001, 20000, 36000, 38000, 39000})
      EXPECT_DOUBLE_EQ(learning_rate(samples, 40000 * 16, at * 16), learning_rate(iterations, 40000, at))
          << style << " at " << at;
  }
}

}  // namespace
}  // namespace witan
