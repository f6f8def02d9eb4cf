// Compares each rule's derivative with central differences of its value in float64, and tests rules at their edges.
#include "witan/kernels/pointwise/rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "witan/kernels/common/cpu/math.h"

namespace witan::kernels {
namespace {

constexpr double kStep = 1e-5, kTolerance = 1e-8;  // the differences' own error is of order kStep^2

using cpu::Math;

template <class Rule>
void expect_slope(const Rule& rule, double x) {
  const double difference = (rule.at(x + kStep).value - rule.at(x - kStep).value) / (2 * kStep);
  EXPECT_NEAR(rule.at(x).slope, difference, kTolerance) << "at " << x;
}

TEST(PointwiseRules, SlopesAreDerivatives) {
  for (const double x : {-3.1, -0.7, 0.2, 1.9}) {
    expect_slope(rules::Silu<Math>(), x);
    expect_slope(rules::ExactGelu<Math>(), x);
    expect_slope(rules::TanhGelu<Math>(), x);
    expect_slope(rules::SquaredRelu(), x);
    expect_slope(rules::ClampedSilu<Math>({.clamp = 1.5, .scale = 1.702, .offset = 1}), x);
  }
}

TEST(PointwiseRules, ClampedSwigluStopsAtItsClamp) {
  const rules::ClampedSilu<Math> rule({.clamp = 1.5, .scale = 1.702, .offset = 1});
  EXPECT_EQ(rule.at(2.0).value, rule.at(1.5).value);
  EXPECT_EQ(rule.at(2.0).slope, 0);
  EXPECT_NE(rule.at(1.5).slope, 0);
  EXPECT_EQ(rule.up(-9.0).value, -0.5);
  EXPECT_EQ(rule.up(-9.0).slope, 0);
  EXPECT_EQ(rule.up(0.25).value, 1.25);
  EXPECT_EQ(rule.up(0.25).slope, 1);
  EXPECT_TRUE(std::isnan(rule.up(std::numeric_limits<double>::quiet_NaN()).value));
}

TEST(PointwiseRules, ClampKeepsWhatIsWithin) {
  const rules::Clamp<float> rule{2};
  EXPECT_EQ(rule.value(1.5f), 1.5f);
  EXPECT_EQ(rule.value(3.0f), 2.0f);
  EXPECT_EQ(rule.value(-3.0f), -2.0f);
  EXPECT_TRUE(std::isnan(rule.value(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(rule.passes(2.0f));
  EXPECT_FALSE(rule.passes(-2.5f));
}

TEST(PointwiseRules, SoftCapSlopeIsTheDerivative) {
  const double scale = 0.8, cap = 3;
  const rules::SoftCapSlope<double> rule{scale, 1 / cap};
  const auto y = [&](double x) { return cap * std::tanh(scale * x / cap); };
  for (const double x : {-4.0, -0.3, 0.0, 2.5})
    EXPECT_NEAR(rule.gradient(y(x), 1.0), (y(x + kStep) - y(x - kStep)) / (2 * kStep), kTolerance) << "at " << x;
}

}  // namespace
}  // namespace witan::kernels
