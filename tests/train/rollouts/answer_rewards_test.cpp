#include "witan/train/rollouts/answer_rewards.h"

#include <gtest/gtest.h>

#include "support/message_of.h"

namespace witan {
namespace {

using test::message_of;

std::vector<double> values_of(const RolloutConfig& config, const SampledAnswer& sampled) {
  return AnswerRewards(config).values({sampled}).front();
}

TEST(AnswerRewards, AreWeightedSums) {
  RolloutConfig config;
  config.reward = "math, format,length,command";
  config.reward_weights = "1,0.5,-0.25, 2";
  config.reward_format = "(?:a|b)+ = .*";
  config.reward_command = "echo 3";
  config.max_completion_length = 8;
  const SampledAnswer sampled{"question", "ab = \\boxed{1/2}", "0.5", 2};
  EXPECT_EQ(values_of(config, sampled), (std::vector<double>{1, 1, 0.75, 3}));
  EXPECT_EQ(AnswerRewards(config).sum({1, 1, 0.75, 3}), 1 + 0.5 - 0.1875 + 6);
  config.reward_weights.clear();
  EXPECT_EQ(AnswerRewards(config).sum({1, 1, 0.75, 3}), 5.75);
}

TEST(AnswerRewards, FindTheAnswerByARegularExpression) {
  RolloutConfig config;
  config.reward = "regex";
  config.reward_regex = "answer: (\\w+)";
  EXPECT_EQ(values_of(config, {"q", "answer: no. answer: yes!", "yes"}), (std::vector<double>{1}));
  EXPECT_EQ(values_of(config, {"q", "answer: yes. answer: no!", "yes"}), (std::vector<double>{0}));
  EXPECT_EQ(values_of(config, {"q", "yes", "yes"}), (std::vector<double>{0}));
  config.reward_regex = "[0-9]+";
  EXPECT_EQ(values_of(config, {"q", "1 or 22", "22"}), (std::vector<double>{1}));
  EXPECT_EQ(values_of(config, {"q", "", "22"}), (std::vector<double>{0}));
}

TEST(AnswerRewards, CompareTheFormatOfTheWholeAnswer) {
  RolloutConfig config;
  config.reward = "format";
  config.reward_format = "<think>(?m:.*)</think>\\s*[0-9]+";
  EXPECT_EQ(values_of(config, {"q", "<think>a\nb</think>\n12", ""}), (std::vector<double>{1}));
  EXPECT_EQ(values_of(config, {"q", "<think>a</think> 12 ", ""}), (std::vector<double>{0}));
  EXPECT_EQ(values_of(config, {"q", " <think>a</think>12", ""}), (std::vector<double>{0}));
  config.reward_format = R"((?m:.*)\\boxed\{.*\}\.?)";  // docs/rl.md
  EXPECT_EQ(values_of(config, {"q", "so\n\\boxed{1}.", ""}), (std::vector<double>{1}));
  EXPECT_EQ(values_of(config, {"q", "so 1", ""}), (std::vector<double>{0}));
}

TEST(AnswerRewards, NameAReferenceThatTheyCannotRead) {
  RolloutConfig config;
  config.reward = "number";
  EXPECT_NE(message_of<RewardError>([&] {
              values_of(config, {"q", "4", "four"});
            }).find("the answer \"four\" has no number"),
            std::string::npos);
}

// A text may take an expression beyond its limits.
TEST(AnswerRewards, AreBoundedInTime) {
  RolloutConfig config;
  config.reward = "regex";
  config.reward_regex = "(?:a|aa|aaa)+c|a+!";
  const std::string message = message_of<RewardError>([&] { values_of(config, {"q", std::string(100, 'a'), "1"}); });
  EXPECT_NE(message.find("reward_regex = \"(?:a|aa|aaa)+c|a+!\" exceeded its limits"), std::string::npos) << message;
}

}  // namespace
}  // namespace witan
