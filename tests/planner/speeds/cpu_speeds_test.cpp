#include "witan/planner/speeds/cpu_speeds.h"

#include <gtest/gtest.h>

#include <limits>

namespace witan {
namespace {

TimedCalls timed(const CallSpeed& speed, double calls, double flops, double moved, double weight = 1) {
  const double seconds = calls * (speed.call + flops * speed.flop + moved * speed.moved);
  return {calls * moved, {calls * flops, 0, seconds, calls}, weight};
}

void expect_near(const CallSpeed& fitted, const CallSpeed& speed) {
  EXPECT_NEAR(fitted.call, speed.call, 1e-6 * speed.call + 1e-15);
  EXPECT_NEAR(fitted.flop, speed.flop, 1e-6 * speed.flop + 1e-20);
  EXPECT_NEAR(fitted.moved, speed.moved, 1e-6 * speed.moved + 1e-18);
}

TEST(CpuSpeeds, FitsRecoverTheCostsOfCalls) {
  for (const CallSpeed& speed : {CallSpeed{1e-6, 7e-12, 9e-11}, CallSpeed{0, 7e-12, 9e-11}, CallSpeed{2e-5, 0, 1e-10},
                                 CallSpeed{3e-6, 1e-11, 0}, CallSpeed{5e-6, 0, 0}}) {
    SCOPED_TRACE(::testing::Message() << speed.call << " " << speed.flop << " " << speed.moved);
    expect_near(fit_speed({timed(speed, 3, 5e5, 3e4), timed(speed, 12, 1.3e8, 8.4e6), timed(speed, 6, 2.1e9, 8.4e6),
                           timed(speed, 1, 1e3, 2e2)}),
                speed);
  }
}

// One size determines only one term: any split is right if the time matches the measured one.
TEST(CpuSpeeds, FitsOfOneSizeAreExactThere) {
  const TimedCalls one = timed({1e-6, 7e-12, 9e-11}, 4, 1e6, 1e5);
  const CallSpeed speed = fit_speed({one, one});
  EXPECT_NEAR(4 * speed.call + one.cost.flops * speed.flop + one.moved * speed.moved, one.cost.seconds, 1e-12);
}

TEST(CpuSpeeds, FitsHaveNoNegativeTerms) {
  // A call with four times the work took half of the time, as on a busy machine.
  const CallSpeed speed = fit_speed({{1e6, {0, 0, 1e-3, 1}}, {4e6, {0, 0, 0.5e-3, 1}}});
  EXPECT_GE(speed.call, 0);
  EXPECT_GE(speed.flop, 0);
  EXPECT_GE(speed.moved, 0);
  EXPECT_GT(speed.call + speed.flop + speed.moved, 0);
  EXPECT_EQ(fit_speed({}), CallSpeed());
  EXPECT_EQ(fit_speed({{1, {1, 1, 0, 1}}}), CallSpeed()) << "it was not timed";
}

TEST(CpuSpeeds, HeavyCallsDominateTheFit) {
  const CallSpeed speed = fit_speed({{1e6, {0, 0, 1e-3, 1}, 100}, {1e6, {0, 0, 2e-3, 1}, 1}});
  const double seconds = speed.call + 1e6 * speed.moved;
  EXPECT_NEAR(seconds, 1e-3, 0.02e-3);
}

TEST(CpuSpeeds, ShortSumsMoveMoreBytesPerFlop) {
  EXPECT_EQ(moved_by("gemm", {1024, 256, 64, 1}, {64e6, 5}), 1e6);
  EXPECT_EQ(moved_by("gemm", {1024, 16, 256, 1}, {64e6, 5}), 4e6);
  EXPECT_EQ(moved_by("gemm", {4, 16, 256, 1}, {64e6, 5}), 16e6);
  EXPECT_EQ(moved_by("grouped_gemm_forward", {64, 256, 64, 8}, {64e6, 5}), 8e6) << "8 rows a group";
  EXPECT_EQ(moved_by("grouped_gemm_forward", {4, 256, 64, 8}, {64e6, 5}), 64e6) << "less than a row a group";
  EXPECT_EQ(moved_by("attention_forward", {256, 256, 32, 16}, {64e6, 5}), 2e6);
  EXPECT_EQ(moved_by("norm", {}, {64e6, 5}), 5) << "its bytes";
}

TEST(CpuSpeeds, KernelsUseTheirOwnSpeedOrTheMean) {
  CpuSpeeds speeds;
  speeds.kernels = {{"norm", {1e-6, 0, 1e-9}}};
  EXPECT_NEAR(*speeds.kernel_seconds({.name = "norm"}, {5, 1e6, 0, 10}), 10e-6 + 1e-3, 1e-15);
  EXPECT_NEAR(*speeds.kernel_seconds({.name = "norm"}, {5, 1e6}), 1e-6 + 1e-3, 1e-15) << "one call";
  EXPECT_FALSE(speeds.kernel_seconds({.name = "gemm"}, {5, 1e6, 0, 10}));
  speeds.kernels[""] = {2e-6, 1e-12, 0};
  EXPECT_NEAR(*speeds.kernel_seconds({.name = "gemm"}, {1e9, 1e6, 0, 10}), 20e-6 + 1e-3, 1e-15);
}

TEST(CpuSpeeds, AcceptsArbitraryValuesFromFiles) {
  CpuSpeeds speeds = typical_cpu_speeds(100e9, 10e9, 2);
  EXPECT_TRUE(speeds.valid());
  speeds.between_call = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(speeds.valid());
  speeds = typical_cpu_speeds(100e9, 10e9, 2);
  speeds.kernels["gemm"] = {0, 0, -1};
  EXPECT_FALSE(speeds.valid());
}

// A product with long sums is near the peak, one with short sums is bound by memory, and a small one by call overhead.
// call.
TEST(CpuSpeeds, TypicalSpeedsAreFractionsOfThePeaks) {
  const CpuSpeeds speeds = typical_cpu_speeds(100e9, 10e9, 1);
  const auto share = [&](int64_t m, int64_t n, int64_t k) {
    const Cost cost{2.0 * static_cast<double>(m * n * k), 0, 0, 1};
    return cost.flops / *speeds.kernel_seconds({.name = "gemm", .shape = {m, n, k, 1}}, cost) / 100e9;
  };
  EXPECT_GT(share(4096, 4096, 4096), 0.75);
  EXPECT_LT(share(4096, 4096, 4096), 0.8);
  EXPECT_LT(share(4096, 4096, 16), 0.5);
  EXPECT_LT(share(8, 8, 8), 0.02);
}

}  // namespace
}  // namespace witan
