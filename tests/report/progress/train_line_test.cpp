#include "witan/report/progress/train_line.h"

#include <gtest/gtest.h>

#include <cmath>

#include "witan/report/progress/progress.h"

namespace witan {
namespace {

TrainStatus status() {
  return {.step = 120,
          .total_steps = 500,
          .loss = 4.5124,
          .validation_loss = 4.63,
          .bits_per_byte = 2.413,
          .evaluated_at = 120,
          .tokens_per_s = 12'340,
          .gflops = 38.2,
          .ceiling_share = 0.61,
          .load_max_over_mean = 1.32,
          .data_wait_share = 0.004,
          .eta_s = 130};
}

TEST(TrainLine, Golden) {
  EXPECT_EQ(
      format_train_line(status(), 0, false),
      "step 120/500  loss 4.512  validation 4.630  2.413 bits/byte  12.3 K tok/s  38.2 GFLOP/s (61 % of ceiling)  "
      "load max/mean 1.32  data wait 0 %  ETA 2 min 10 s");
}

TEST(TrainLine, PrintsNaNsWithoutSign) {
  TrainStatus lost = status();
  lost.loss = lost.grad_norm.emplace(-NAN);
  EXPECT_TRUE(format_train_line(lost, 0, false).starts_with("step 120/500  loss nan  "))
      << format_train_line(lost, 0, false);
  EXPECT_NE(format_train_line(lost, 0, false).find("grad norm nan  "), std::string::npos);
}

TEST(TrainLine, CountsEpochsFromTheSecondOn) {
  TrainStatus repeating = status();
  repeating.epochs = 0.99;
  EXPECT_EQ(format_train_line(repeating, 0, false), format_train_line(status(), 0, false));
  repeating.epochs = 1.256;
  EXPECT_NE(format_train_line(repeating, 0, false).find("  epoch 1.26  data wait"), std::string::npos);
}

TEST(TrainLine, OmitsMissingItems) {
  TrainStatus dense;
  dense.step = 1;
  dense.total_steps = 2;
  dense.loss = 3;
  dense.tokens_per_s = 5;
  dense.gflops = 7;
  EXPECT_EQ(format_train_line(dense, 0, false), "step 1/2  loss 3.000  5 tok/s  7 GFLOP/s  data wait 0 %");
}

TEST(TrainLine, AppendsRequestedItems) {
  TrainStatus more = status();
  more.scalars.set(kParamsNorm, 315.0234);
  more.scalars.set(kNumZeros, 56'775'512);
  more.scalars.set(kMegatronTflops, 0.03812);
  EXPECT_EQ(
      format_train_line(more, 0, false),
      "step 120/500  loss 4.512  validation 4.630  2.413 bits/byte  12.3 K tok/s  38.2 GFLOP/s (61 % of ceiling)  "
      "load max/mean 1.32  data wait 0 %  params norm 315.023  zero gradients 56.8 M  0.0381 TFLOP/s/rank  "
      "ETA 2 min 10 s");
}

TEST(TrainLine, ShowsDroppedAssignments) {
  TrainStatus bounded = status();
  bounded.dropped_share = 0.0312;
  EXPECT_NE(format_train_line(bounded, 0, false).find("load max/mean 1.32  dropped 3.1 %  data wait"),
            std::string::npos);
}

TEST(TrainLine, DropsWholeItemsOnNarrowTerminals) {
  EXPECT_EQ(format_train_line(status(), 100, false),
            "step 120/500  loss 4.512  validation 4.630  2.413 bits/byte  12.3 K tok/s  ETA 2 min 10 s");
  EXPECT_EQ(format_train_line(status(), 1, false), "step 120/500  loss 4.512");
  const int full = display_width(format_train_line(status(), 0, false));
  for (int width = 24; width <= full; ++width)
    EXPECT_LE(display_width(format_train_line(status(), width, true)), width);
}

// A figure of an older step must not appear to be this step's.
TEST(TrainLine, ShowsTheStepOfAnEvaluation) {
  TrainStatus later = status();
  later.evaluated_at = 100;
  EXPECT_NE(format_train_line(later, 0, false).find("  validation 4.630  2.413 bits/byte at step 100  12.3 K tok/s"),
            std::string::npos);
  EXPECT_EQ(format_train_line(later, 84, false),
            "step 120/500  loss 4.512  2.413 bits/byte at step 100  12.3 K tok/s  ETA 2 min 10 s");
  later.bits_per_byte.reset();
  EXPECT_NE(format_train_line(later, 0, false).find("  validation 4.630 at step 100  12.3 K tok/s"), std::string::npos);
}

TEST(TrainLine, ShowsLearningRateAndGradientNorm) {
  TrainStatus full = status();
  full.learning_rate = 9.8123e-4;
  full.grad_norm = 0.87654;
  EXPECT_NE(format_train_line(full, 0, false).find("bits/byte  lr 0.000981  grad norm 0.877  12.3 K tok/s"),
            std::string::npos);
}

TEST(TrainLine, ShowsTheCurrentActivity) {
  TrainStatus within = status();
  within.current_activity = "step 121 at 40 %";
  EXPECT_TRUE(format_train_line(within, 0, false).starts_with("step 120/500  (step 121 at 40 %)  loss 4.512  "));
}

TEST(TrainLine, ColoursTakeNoColumns) {
  const std::string coloured = format_train_line(status(), 0, true);
  EXPECT_NE(coloured.find("\x1b[2mloss \x1b[0m4.512"), std::string::npos);
  EXPECT_EQ(display_width(coloured), display_width(format_train_line(status(), 0, false)));
}

}  // namespace
}  // namespace witan
