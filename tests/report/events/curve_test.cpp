#include "witan/report/events/curve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "report/synthetic.h"

namespace witan {
namespace {

Curve noisy(int64_t points) {
  Curve curve;
  for (int64_t i = 0; i < points; ++i) curve.push_back({static_cast<double>(i), synthetic::noise(i)});
  return curve;
}

TEST(Downsample, KeepsShortCurves) {
  EXPECT_TRUE(downsample({}, 10).empty());
  EXPECT_EQ(downsample(noisy(1), 2), noisy(1));
  EXPECT_EQ(downsample(noisy(10), 10), noisy(10));
}

TEST(Downsample, KeepsEndsSpikesAndOrder) {
  Curve curve = noisy(100'000);
  curve[77'777].y = 50;
  curve[33'333].y = -50;
  for (const size_t most : {2u, 3u, 4u, 5u, 100u, 1999u, 2000u}) {
    const Curve few = downsample(curve, most);
    EXPECT_LE(few.size(), most);
    EXPECT_EQ(few.front(), curve.front());
    EXPECT_EQ(few.back(), curve.back());
    EXPECT_TRUE(std::is_sorted(few.begin(), few.end(), [](auto& a, auto& b) { return a.x < b.x; }));
    if (most < 4) continue;
    EXPECT_NE(std::find(few.begin(), few.end(), curve[77'777]), few.end()) << most;
    EXPECT_NE(std::find(few.begin(), few.end(), curve[33'333]), few.end()) << most;
  }
}

// On a logarithmic x axis every decade has points, and those of the first decades do not move.
TEST(Downsample, KeepsTheFirstPoints) {
  for (const int64_t count : {2001, 31'000, 1'000'000}) {
    const Curve curve = noisy(count), few = downsample(curve, 2000);
    EXPECT_TRUE(std::equal(few.begin(), few.begin() + 400, curve.begin())) << count;
    EXPECT_LE(few.size(), 2000u);
    EXPECT_GT(few.size(), 1000u) << "most points are in the rest";
  }
  EXPECT_EQ(downsample(noisy(31'000), 400)[79].x, 79) << "a fifth of fewer points as well";
}

TEST(Downsample, HandlesConstantCurves) {
  const Curve few = downsample(Curve(5000, {1, 2}), 100);
  EXPECT_LE(few.size(), 100u);
  EXPECT_GE(few.size(), 2u);
}

// All points but the last ones, whose interval is incomplete, until all intervals double.
TEST(Downsample, KeepsPointsWhileACurveGrows) {
  const Curve more = downsample(noisy(2620), 400);
  for (int64_t count = 1354; count < 2620; count += 3) {
    const Curve few = downsample(noisy(count), 400);
    EXPECT_TRUE(std::equal(few.begin(), few.end() - 3, more.begin())) << count;
    EXPECT_GE(few.size(), 200u) << count;
  }
  EXPECT_EQ(stretch_length(0, 1), 1u);
  EXPECT_EQ(stretch_length(10, 10), 1u);
  EXPECT_EQ(stretch_length(11, 10), 2u);
  EXPECT_EQ(stretch_length(21, 10), 4u) << "3 would suffice, but is no power of two";
}

TEST(Smooth, KeepsConstantCurves) {
  for (const Point& p : smooth(Curve{{1, 3}, {2, 3}, {3, 3}}, 50)) EXPECT_NEAR(p.y, 3, 1e-12);
}

TEST(Smooth, WeightsOlderPointsLess) {
  const Curve smoothed = smooth({{1, 0}, {2, 1}}, 2);  // weights 1/4 and 1/2, over 3/4
  EXPECT_DOUBLE_EQ(smoothed[0].y, 0);
  EXPECT_DOUBLE_EQ(smoothed[1].y, 2.0 / 3);
  EXPECT_EQ(smooth(noisy(5), 1), noisy(5));
}

// E.g. the number of dead experts, which becomes exactly 0 at some step.
TEST(Smooth, ForgetsValuesBeforeTenSpansOfEqualPoints) {
  Curve curve(400, {0, 0});
  for (size_t i = 0; i < 100; ++i) curve[i].y = 8;
  curve[300].y = 1;
  const Curve smoothed = smooth(curve, 5);
  EXPECT_EQ(smoothed[99].y, 8) << "without a rounding error";
  EXPECT_NEAR(smoothed[148].y, 8 * std::pow(0.8, 49), 1e-12) << "it decays";
  EXPECT_GT(smoothed[148].y, 0);
  for (size_t i = 149; i < 300; ++i) EXPECT_EQ(smoothed[i].y, 0) << i;
  EXPECT_NEAR(smoothed[300].y, 0.2, 1e-12) << "forgotten values have no effect";
  EXPECT_EQ(smoothed.back().y, 0);
}

TEST(Smooth, SpanGrowsWithTheCurveWithinLimits) {
  EXPECT_EQ(smoothing_span(1), 1);
  EXPECT_EQ(smoothing_span(19), 1) << "few points need no smoothing";
  EXPECT_EQ(smoothing_span(20), 5) << "enough points to smooth";
  EXPECT_EQ(smoothing_span(5000), 50);
  EXPECT_EQ(smoothing_span(9999), 50) << "constant over long ranges, so that smoothed points do not move";
  EXPECT_EQ(smoothing_span(10'000), 100);
  EXPECT_EQ(smoothing_span(10'000'000), 1000);
}

}  // namespace
}  // namespace witan
