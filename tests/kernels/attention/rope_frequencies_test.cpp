#include <gtest/gtest.h>

#include <cmath>

#include "witan/kernels/attention/rope.h"

namespace witan::kernels {
namespace {

using Type = RopeScaling::Type;

RopeArgs args_of(Type type, double factor = 8) {
  RopeArgs args{.base = 10000, .dims = 64};
  args.scaling.type = type;
  args.scaling.factor = factor;
  args.scaling.original_positions = 4096;
  return args;
}

double trained(const RopeArgs& args, size_t pair) {
  return std::pow(args.base, -2 * static_cast<double>(pair) / static_cast<double>(args.dims));
}

TEST(RopeFrequencies, FormAGeometricSequence) {
  const RopeArgs args = args_of(Type::none);
  const auto frequencies = rope_frequencies(args);
  ASSERT_EQ(frequencies.size(), 32);
  for (size_t pair = 0; pair < 32; ++pair) EXPECT_DOUBLE_EQ(frequencies[pair], trained(args, pair));
  EXPECT_TRUE(rope_frequencies({.dims = 0}).empty());
}

// The exponents of 1 / 1000 are spaced as by torch.linspace(0, 1, 4), followed by zeros.
TEST(RopeFrequencies, MatchHalfTruncatedLinspace) {
  RopeArgs args{.base = 1000, .dims = 16};
  args.half_truncated = true;
  const auto frequencies = rope_frequencies(args);
  const std::vector<double> expected = {1, 0.1, 0.01, 0.001, 0, 0, 0, 0};
  ASSERT_EQ(frequencies.size(), expected.size());
  for (size_t pair = 0; pair < expected.size(); ++pair) EXPECT_NEAR(frequencies[pair], expected[pair], 1e-15);
}

TEST(RopeFrequencies, LongRopeDividesEachByItsOwnFactor) {
  RopeArgs args{.base = 10000, .dims = 8};
  args.scaling.type = Type::longrope;
  args.scaling.factors = {1, 1.25, 3, 40};
  const auto frequencies = rope_frequencies(args);
  for (size_t pair = 0; pair < 4; ++pair)
    EXPECT_DOUBLE_EQ(frequencies[pair] * args.scaling.factors[pair], trained(args, pair));
}

TEST(RopeFrequencies, AFactorOfOneChangesNothing) {
  for (const Type type : {Type::linear, Type::llama3, Type::yarn}) {
    const RopeArgs args = args_of(type, 1);
    const auto frequencies = rope_frequencies(args);
    for (size_t pair = 0; pair < 32; ++pair) EXPECT_NEAR(frequencies[pair] / trained(args, pair), 1, 1e-14);
  }
}

// Fast pairs stay, slow ones are divided by the factor, and those in between are interpolated between the two.
TEST(RopeFrequencies, YarnInterpolatesSlowPairs) {
  for (const Type type : {Type::llama3, Type::yarn}) {
    const RopeArgs args = args_of(type);
    const double fast = type == Type::yarn ? args.scaling.beta_fast : args.scaling.high_freq_factor,
                 slow = type == Type::yarn ? args.scaling.beta_slow : args.scaling.low_freq_factor;
    const auto frequencies = rope_frequencies(args);
    double last = 1;
    int kept = 0, divided = 0, blended = 0;
    for (size_t pair = 0; pair < 32; ++pair) {
      const double share = frequencies[pair] / trained(args, pair), turns = 4096 * trained(args, pair) / (2 * M_PI);
      EXPECT_LE(share, last + 1e-15);
      last = share;
      if (turns > fast) {
        EXPECT_NEAR(share, 1, 1e-14);
        ++kept;
      } else if (turns < slow) {
        EXPECT_NEAR(share, 1.0 / 8, 1e-14);
        ++divided;
      } else {
        EXPECT_TRUE(share < 1 && share > 1.0 / 8) << pair;
        ++blended;
      }
    }
    EXPECT_TRUE(kept > 0 && divided > 0 && blended > 0);
  }
}

TEST(RopeFrequencies, PairOfTurnsIsTheInverseOfTurnsOfPair) {
  const RopeArgs args = args_of(Type::yarn);
  for (const double turns : {32.0, 1.0, 0.25})
    EXPECT_NEAR(rope_turns_of(args, rope_pair_of(args, turns)), turns, 1e-12);
  EXPECT_NEAR(rope_turns_of(args, 3), 4096 * trained(args, 3) / (2 * M_PI), 1e-9);
}

// In a context so short that no pair turns often enough, the ramp has length 0, and is a step.
TEST(RopeFrequencies, ARampOfLengthZeroIsAStep) {
  RopeArgs args = args_of(Type::yarn);
  args.scaling.beta_fast = 2, args.scaling.beta_slow = 2 - 1e-12;
  const double step = rope_pair_of(args, 2);
  const auto frequencies = rope_frequencies(args);
  for (size_t pair = 0; pair < 32; ++pair)
    EXPECT_NEAR(frequencies[pair] / trained(args, pair), static_cast<double>(pair) < step ? 1 : 1.0 / 8, 1e-14);
}

}  // namespace
}  // namespace witan::kernels
