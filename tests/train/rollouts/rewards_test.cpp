#include "witan/train/rollouts/rewards.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "support/comes_true.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/files/file.h"

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

TEST(RewardProgram, ReadsAnswersAndWritesNumbers) {
  const std::vector<SampledAnswer> sampled = {answered("a \"b\"\n", "1"), answered("\xff", "2"), answered("c", "3")};
  EXPECT_EQ(run_reward_program("while read line; do echo ' 0.5 '; done", sampled, 20),
            (std::vector<double>{0.5, 0.5, 0.5}));
  EXPECT_EQ(run_reward_program("sed 's/.*\"answer\":\"\\([0-9]*\\)\".*/\\1/'", sampled, 20),
            (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(run_reward_program("no such program", {}, 20), std::vector<double>());
}

// More input than a pipe holds, to a program that writes before it has read all, and to one that reads nothing.
TEST(RewardProgram, TakesMoreThanAPipeHolds) {
  const std::vector<SampledAnswer> sampled(64, answered(std::string(20'000, 'x'), "1"));
  EXPECT_EQ(run_reward_program("while read line; do echo 1; done", sampled, 60).size(), 64);
  EXPECT_EQ(run_reward_program("exec <&-; yes 2 | head -n 64", sampled, 60), std::vector<double>(64, 2));
}

TEST(RewardProgram, IsNamedWithWhatItDidWrong) {
  const std::vector<SampledAnswer> two = {answered("a", "1"), answered("b", "2")};
  const auto message = [&](const std::string& command, double seconds = 20) {
    return message_of<RewardError>([&] { run_reward_program(command, two, seconds); });
  };
  const auto expect = [](const std::string& found, const std::string& part) {
    EXPECT_NE(found.find(part), std::string::npos) << found;
  };
  expect(message("echo oh dear >&2; exit 3"), "it ended with code 3; it wrote to its standard error: oh dear");
  expect(message("kill -9 $$"), "it was killed by signal 9");
  expect(message("echo 1"), "it wrote 1 rewards for 2 answers");
  expect(message("seq 3"), "it wrote 3 rewards for 2 answers");
  expect(message("echo 1; echo great"), "line 2 of its output is not a finite number: great");
  expect(message("echo 1; echo nan"), "line 2 of its output is not a finite number: nan");
  expect(message("yes"), "it wrote more than 8192 bytes for 2 answers");
  expect(message("echo 1; sleep 1000", 0.2), "it has not ended after reward_timeout = 0.2 s");
  expect(message("exec >&- 2>&-; sleep 1000", 0.2), "it has not ended after reward_timeout = 0.2 s");
}

// A process that the program started must not go on after it.
TEST(RewardProgram, IsKilledWithWhatItStarted) {
  const test::TempFolder folder;
  const std::string pid = (folder / "pid").string();
  message_of<RewardError>(
      [&] { run_reward_program(cat("sleep 1000 & echo $! > ", pid, "; wait"), {answered("a", "1")}, 0.5); });
  const std::string state = cat("/proc/", std::stoi(read_file(pid)), "/stat");
  EXPECT_TRUE(test::comes_true([&] {
    std::ifstream file(state);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    return text.empty() || text.find(") Z ") != std::string::npos;
  }));
}

}  // namespace
}  // namespace witan
