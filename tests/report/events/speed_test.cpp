#include "witan/report/events/speed.h"

#include <gtest/gtest.h>

#include <cmath>

namespace witan {
namespace {

Metrics steps_of(const std::vector<double>& speeds) {
  Metrics metrics;
  for (const double speed : speeds) {
    StepEvent& step = metrics.steps.emplace_back();
    step.step = std::ssize(metrics.steps);
    step.tokens_per_s = speed;
    step.gflops = 2 * speed;
  }
  return metrics;
}

TEST(RunSpeed, IsThatOfTheMedianStep) {
  const RunSpeed speed = run_speed(steps_of({1, 30, 32, 31, 15}));
  EXPECT_EQ(speed.tokens_per_s, 30);
  EXPECT_EQ(speed.gflops, 60);
}

TEST(RunSpeed, LeavesOutWhatNoStepTells) {
  EXPECT_EQ(run_speed(steps_of({NAN, 7, INFINITY})).tokens_per_s, 7);
  EXPECT_TRUE(std::isnan(run_speed({}).tokens_per_s));
  EXPECT_TRUE(std::isnan(run_speed(steps_of({NAN})).gflops));
}

}  // namespace
}  // namespace witan
