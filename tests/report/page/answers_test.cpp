#include "witan/report/page/answers.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "report/synthetic.h"
#include "support/temp_folder.h"
#include "witan/report/page/page.h"

namespace witan {
namespace {

nlohmann::json rollout(int64_t row, const std::string& prompt, const std::string& completion, double reward) {
  return {{"row", row}, {"prompt", prompt}, {"completion", completion}, {"reward", reward}};
}

std::string line_of(int64_t row, const std::string& prompt, const std::string& completion, double reward) {
  return rollout(row, prompt, completion, reward).dump() + "\n";
}

TEST(StepAnswers, ShowTheBestTheWorstAndTheNewest) {
  const test::TempFolder folder;
  EXPECT_TRUE(step_answers(folder.path()).shown.empty());
  fs::create_directories(folder / "rollouts");
  write_file_atomically(folder / "rollouts/step-00000009.jsonl", line_of(0, "old", "text", 9));
  write_file_atomically(folder / "rollouts/unfinished-0.jsonl", line_of(0, "unfinished", "text", 9));
  write_file_atomically(folder / "rollouts/step-00000012.jsonl",
                        line_of(4, "2 + 2", "4", 1) + "torn\n" + line_of(5, "2 + 2", "<b>", 0.5) +
                            line_of(6, "3 + 3", "six", 0.25) + line_of(7, "3 + 3", "7", -1) +
                            line_of(8, "1 + 1", "2", 0) + line_of(9, "1 + 1", "3", 0.5));
  const StepAnswers step = step_answers(folder.path());
  EXPECT_EQ(step.step, 12);
  std::vector<std::pair<std::string, int64_t>> found;
  for (const ShownAnswer& answer : step.shown) found.emplace_back(answer.what, answer.row);
  EXPECT_EQ(found, (std::vector<std::pair<std::string, int64_t>>{{"best", 4}, {"worst", 7}, {"newest", 9}}))
      << "the last answer of each of two prompts, of which one is the worst already";
}

TEST(StepAnswers, CountThoseOfEqualRewards) {
  const test::TempFolder folder;
  fs::create_directories(folder / "rollouts");
  nlohmann::json skipped = rollout(1, "b", "x", 0), discarded = rollout(1, "c", "y", 5);
  skipped["skipped"] = discarded["skipped"] = discarded["discarded"] = true;
  write_file_atomically(folder / "rollouts/step-00000002.jsonl",
                        line_of(0, "a", "z", 1) + skipped.dump() + "\n" + discarded.dump() + "\n");
  const StepAnswers step = step_answers(folder.path());
  EXPECT_EQ(step.answers, 2);
  EXPECT_EQ(step.skipped, 1);
  EXPECT_EQ(step.discarded, 1);
  EXPECT_EQ(step.shown.front().completion, "z") << "the best one that is not discarded";
  EXPECT_NE(answer_section(step).find("Of step 2: 1 of 2 are skipped, since all rewards to their prompts are equal, "
                                      "and 1 more were discarded for this reason; the folder"),
            std::string::npos)
      << answer_section(step);
}

TEST(StepAnswers, ShowAllTurnsOfAConversation) {
  const test::TempFolder folder;
  fs::create_directories(folder / "rollouts");
  nlohmann::json turns = rollout(1, "2+3", "5", 1);
  turns["messages"] = {{{"role", "assistant"}, {"content", "add(2,3)"}},
                       {{"role", "tool"}, {"content", "5"}},
                       {{"role", "assistant"}, {"content", "5"}}};
  write_file_atomically(folder / "rollouts/step-00000002.jsonl", turns.dump() + "\n");
  EXPECT_EQ(step_answers(folder.path()).shown.front().completion, "\n[assistant] add(2,3)\n[tool] 5\n[assistant] 5");
}

TEST(StepAnswers, AreEscapedOnThePage) {
  const ShownAnswer answer{.row = 7, .what = "best", .prompt = "a<b", .completion = "<script>", .reward = 0.5};
  const StepAnswers step{.step = 3, .answers = 1, .shown = {answer}};
  const std::string page = frozen_page(report_parts(synthetic::run(5, 0, 0), "", "run", step));
  EXPECT_NE(page.find("Of step 3; the folder rollouts has all"), std::string::npos);
  EXPECT_NE(page.find("The best one, reward 0.5: answer 7"), std::string::npos);
  EXPECT_NE(page.find("a&lt;b</span>&lt;script&gt;</blockquote>"), std::string::npos);
  EXPECT_EQ(report_parts(synthetic::run(5, 0, 0), "").rest.find("Sampled answers"), std::string::npos);
}

}  // namespace
}  // namespace witan
