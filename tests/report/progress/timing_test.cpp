#include "witan/report/progress/timing.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>

namespace witan {
namespace {

TEST(RateEstimator, HasNoRateBeforeTwoUpdates) {
  RateEstimator rate;
  EXPECT_FALSE(rate.rate());
  EXPECT_FALSE(rate.remaining(10));
  rate.update(100, 0);
  EXPECT_FALSE(rate.remaining(10));
  rate.update(102, 1);
  EXPECT_DOUBLE_EQ(*rate.remaining(10), 18);
}

TEST(RateEstimator, ForgetsASlowFirstStep) {
  RateEstimator rate;
  rate.update(0, 0);
  rate.update(20, 1);  // warm-up
  rate.update(21, 2);
  rate.update(22, 3);
  EXPECT_DOUBLE_EQ(*rate.rate(), 1);
  EXPECT_DOUBLE_EQ(*rate.remaining(103), 100);
}

TEST(RateEstimator, FollowsLastingChangesAndIgnoresHiccups) {
  RateEstimator rate(30);
  double now = 0, done = 0;
  rate.update(now, done);
  for (int i = 0; i < 200; ++i) rate.update(now += 1, done += 10);
  rate.update(now += 3, done += 10);
  EXPECT_NEAR(*rate.rate(), 10, 1);
  for (int i = 0; i < 300; ++i) rate.update(now += 1, done += 2);
  EXPECT_NEAR(*rate.rate(), 2, 0.01);
}

TEST(RateEstimator, HandlesDoneAndStuckWork) {
  RateEstimator rate;
  rate.update(0, 0);
  rate.update(5, 0);
  EXPECT_FALSE(rate.remaining(10)) << "no estimate without progress";
  rate.update(6, 10);
  EXPECT_EQ(*rate.remaining(10), 0);
}

TEST(RateEstimator, ExcludesStops) {
  RateEstimator rate(30);
  double now = 0, done = 0;
  rate.update(now, done);
  for (int i = 0; i < 20; ++i) rate.update(now += 1, done += 1);
  rate.skip(600);
  rate.update(now += 601, done += 1);
  EXPECT_DOUBLE_EQ(*rate.rate(), 1);
  EXPECT_DOUBLE_EQ(*rate.remaining(121), 100);
}

TEST(StopClock, TellsStopsFromLatePolls) {
  StopClock clock(0.25);
  EXPECT_EQ(clock.poll(1000), 0) << "the first poll";
  EXPECT_EQ(clock.poll(1000.25), 0);
  EXPECT_EQ(clock.poll(1003), 0) << "late";
  EXPECT_EQ(clock.poll(1003.25 + 600), 600);
  EXPECT_EQ(clock.poll(1604), 0);
  EXPECT_EQ(clock.poll(1604.25 + 50), 50);
  EXPECT_EQ(clock.take(), 650);
  EXPECT_EQ(clock.take(), 0);
  StopClock irregular(0);
  irregular.poll(0);
  EXPECT_EQ(irregular.poll(1000), 0);
}

TEST(Ticker, TicksUntilItEnds) {
  std::promise<void> third;
  int ticks = 0;  // not atomic: the destructor joins the thread, which thread sanitizers check
  {
    const Ticker ticker(0.001, [&] {
      if (++ticks == 3) third.set_value();
    });
    EXPECT_EQ(third.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  }
  EXPECT_GE(ticks, 3);
}

TEST(Ticker, EndsAtOnceWithinALongInterval) {
  const auto start = std::chrono::steady_clock::now();
  for (const double seconds : {0.0, 3600.0}) Ticker(seconds, [] { ADD_FAILURE(); });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

}  // namespace
}  // namespace witan
