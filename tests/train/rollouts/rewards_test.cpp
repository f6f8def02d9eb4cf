#include "witan/train/rollouts/rewards.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::message_of;

SampledAnswer answered(const std::string& completion, const std::string& answer) {
  return {"question", completion, answer};
}

TEST(Rewards, MatchTheWholeAnswerOrItsLastNumber) {
  EXPECT_EQ(exact_reward(answered(" 12\n", "12")), 1);
  EXPECT_EQ(exact_reward(answered("12.", "12")), 0);
  EXPECT_EQ(exact_reward(answered("", "12")), 0);
  EXPECT_EQ(number_reward(answered("3 + 9 = 12.", "#### 12")), 1);
  EXPECT_EQ(number_reward(answered("It costs 1,200.50 in all", "1200.5")), 1);
  EXPECT_EQ(number_reward(answered("-4", "4")), 0);
  EXPECT_EQ(number_reward(answered("x = -4", "-4")), 1);
  EXPECT_EQ(number_reward(answered("no idea", "4")), 0);
  EXPECT_NE(
      message_of<DataError>([] { number_reward(answered("4", "four")); }).find("the answer \"four\" has no number"),
      std::string::npos);
}

TEST(Rewards, BecomeAdvantagesWithinTheGroup) {
  const std::vector<double> rewards = {1, 0, 0, 1}, plain = group_advantages(rewards, false),
                            scaled = group_advantages(rewards, true);
  EXPECT_EQ(plain, (std::vector<double>{0.5, -0.5, -0.5, 0.5}));
  for (size_t i = 0; i < rewards.size(); ++i) EXPECT_DOUBLE_EQ(scaled[i], plain[i] / (std::sqrt(1.0 / 3) + 1e-4));
  EXPECT_EQ(group_advantages({2, 2}, true), (std::vector<double>{0, 0}));
  EXPECT_TRUE(all_equal({2, 2}));
  EXPECT_FALSE(all_equal({2, 1}));
}

TEST(Rewards, FallTowardsTheLimitOfTokens) {
  EXPECT_EQ(overlong_penalty(100, 100, 0, 1), 0);
  EXPECT_EQ(overlong_penalty(80, 100, 20, 1), 0);
  EXPECT_EQ(overlong_penalty(90, 100, 20, 2), -1);
  EXPECT_EQ(overlong_penalty(100, 100, 20, 2), -2);
}

TEST(Rewards, PreferShortAnswers) {
  SampledAnswer sampled = answered("a b", "c");
  for (const auto& [tokens, reward] : {std::pair{0, 1.0}, {5, 0.5}, {10, 0.0}, {11, 0.0}}) {
    sampled.tokens = tokens;
    EXPECT_EQ(length_reward(sampled, 10), reward);
  }
}

}  // namespace
}  // namespace witan
