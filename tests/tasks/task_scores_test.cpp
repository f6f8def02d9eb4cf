#include "witan/tasks/task_scores.h"

#include <gmock/gmock.h>

#include <cmath>

namespace witan {
namespace {

Question question(std::vector<std::string> choices, std::vector<int64_t> gold) {
  return {"c", choices, choices, std::move(gold)};
}

TaskConfig config_of(TaskConfig::Output output, std::vector<std::string> metrics) {
  TaskConfig task;
  task.name = "t";
  task.output = output;
  task.metrics = std::move(metrics);
  return task;
}

const TaskMetric& metric(const TaskScore& score, const std::string& name) {
  for (const TaskMetric& one : score.metrics)
    if (one.name == name) return one;
  throw std::out_of_range(name);
}

// The second choice is best by sum, the first by characters, the third by bytes.
TEST(TaskScores, NormalisationDecidesTheBestChoice) {
  const std::vector<Question> questions = {question({"abcdefgh", "a", "éééé"}, {0})};
  const std::vector<Loglikelihood> found = {{-8, false}, {-2, false}, {-4.4, false}};
  const auto right = [&](std::vector<int64_t> gold) {
    std::vector<Question> asked = questions;
    asked[0].gold = std::move(gold);
    const TaskScore score =
        score_task(config_of(TaskConfig::Output::multiple_choice, {"acc", "acc_norm", "acc_bytes"}), asked, found);
    return std::vector{metric(score, "acc").value, metric(score, "acc_norm").value, metric(score, "acc_bytes").value};
  };
  EXPECT_EQ(right({0}), (std::vector<double>{0, 1, 0}));
  EXPECT_EQ(right({1}), (std::vector<double>{1, 0, 0}));
  EXPECT_EQ(right({2}), (std::vector<double>{0, 0, 1}));
  EXPECT_EQ(right({2, 1}), (std::vector<double>{1, 0, 1}));
  EXPECT_EQ(right({}), (std::vector<double>{0, 0, 0}));
}

TEST(TaskScores, ReportStandardErrorsOfTheMean) {
  std::vector<Question> questions;
  std::vector<Loglikelihood> found;
  for (const int64_t gold : {0, 0, 1, 0}) {
    questions.push_back(question({"a", "b"}, {gold}));
    found.insert(found.end(), {{-1, false}, {-1, false}});  // the first one wins a tie
  }
  const auto task = config_of(TaskConfig::Output::multiple_choice, {"acc"});
  const TaskScore score = score_task(task, questions, found);
  EXPECT_EQ(score.rows, 4);
  EXPECT_EQ(metric(score, "acc").value, 0.75);
  EXPECT_DOUBLE_EQ(*metric(score, "acc").standard_error, std::sqrt((3 * 0.0625 + 0.5625) / 3) / 2);
  const TaskScore one = score_task(task, std::span(questions).first(1), std::span(found).first(2));
  EXPECT_FALSE(metric(one, "acc").standard_error);
}

TEST(TaskScores, PerplexityIsPerTargetNotPerToken) {
  const std::vector<Question> questions(2, Question{"c", {" x"}, {}, {}});
  const std::vector<Loglikelihood> found = {{-1, true}, {-3, false}};
  const TaskScore score =
      score_task(config_of(TaskConfig::Output::loglikelihood, {"perplexity", "acc"}), questions, found);
  EXPECT_DOUBLE_EQ(metric(score, "perplexity").value, std::exp(2.0));
  EXPECT_FALSE(metric(score, "perplexity").standard_error);
  EXPECT_EQ(metric(score, "acc").value, 0.5);
}

TEST(TaskScores, GroupsMayBeWeightedByRows) {
  const std::vector<TaskScore> tasks = {{"a", 10, {{"acc", 0.5, 0.1}, {"acc_norm", 1, 0.2}}},
                                        {"b", 30, {{"acc", 0.9, 0.2}}},
                                        {"c", 5, {{"acc", 0.1, 0.3}}}};
  const TaskScore score = score_group({"g", {"a", "b"}, {{"acc", true}, {"acc_norm", true}}}, tasks);
  EXPECT_EQ(score.rows, 40);
  EXPECT_DOUBLE_EQ(metric(score, "acc").value, 0.8);
  const double pooled = (9 * 0.01 * 10 + 29 * 0.04 * 30) / (40 - 2);
  EXPECT_DOUBLE_EQ(*metric(score, "acc").standard_error, std::sqrt(pooled / 40));
  EXPECT_EQ(metric(score, "acc_norm").value, 1) << "tasks without the metric are skipped";
  const TaskScore plain = score_group({"g", {"a", "b"}, {{"acc", false}}}, tasks);
  EXPECT_DOUBLE_EQ(metric(plain, "acc").value, 0.7);
  EXPECT_DOUBLE_EQ(*metric(plain, "acc").standard_error, std::sqrt(0.05) / 2);
}

}  // namespace
}  // namespace witan
