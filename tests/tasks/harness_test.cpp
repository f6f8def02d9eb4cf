// Compares the same tasks and model with lm-evaluation-harness (tests/golden/tasks/make_golden.py): contexts,
// log-likelihoods of all answers, metrics and standard errors.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "support/module.h"
#include "support/temp_folder.h"
#include "witan/base/json.h"
#include "witan/checkpoint/store.h"
#include "witan/convert/hf/hf_weights.h"
#include "witan/convert/import.h"
#include "witan/tasks/task_scores.h"

namespace witan {
namespace {

using testing::Alone;
using testing::Rank;

const fs::path kHarness = fs::path(WITAN_SOURCE_DIR) / "tests/golden/tasks";

class Harness : public ::testing::Test {
 protected:
  Harness()
      : expected_(parse_json(read_file(kHarness / "expected.json"), "expected.json")),
        tokenizer_(Tokenizer::load(kHarness / "model")),
        weights_(kHarness / "model") {
    import_weights(weights_, folder_ / "checkpoints", {}, Json::object());
    model_ = std::make_unique<Transformer>(rank_.stream, weights_.model(), 0, alone_);
    std::vector<StateTensor> state;
    for (const Parameter* parameter : model_->parameters())
      state.push_back({parameter->name(), parameter->value(), parameter->global_shape(), parameter->region()});
    load_tensors(open_checkpoint(folder_ / "checkpoints/step-0"), state, Extra::allow);
    set_ = read_tasks({kHarness / "tasks"});
    for (const TaskConfig& task : set_.tasks) questions_.push_back(make_questions(task, {}).all);
  }

  std::vector<Loglikelihood> found(size_t task, int64_t batch_size) {
    const PairEncoder encoder(tokenizer_, kHarness / "model", weights_.positions());
    std::vector<TokenPair> pairs;
    for (const Question& question : questions_[task])
      for (const std::string& continuation : question.continuations)
        pairs.push_back(encoder.encode(question.context, continuation));
    return loglikelihoods(rank_.stream, *model_, pairs, {.batch_size = batch_size});
  }

  void expect_scores(const TaskScore& score, const Json& expected) {
    size_t metrics = 0;
    for (const auto& [name, value] : expected.items()) metrics += !name.ends_with("_stderr,none");
    EXPECT_EQ(score.metrics.size(), metrics) << score.name;
    for (const TaskMetric& metric : score.metrics) {
      const double value = expected.at(metric.name + ",none").get<double>();
      EXPECT_NEAR(metric.value, value, metric.name == "perplexity" ? 1e-4 * value : 1e-12) << score.name;
      if (metric.standard_error) {
        EXPECT_NEAR(*metric.standard_error, expected.at(metric.name + "_stderr,none").get<double>(), 1e-12)
            << score.name << " " << metric.name;
      }
    }
  }

  test::TempFolder folder_;
  Rank rank_;
  Alone alone_;
  const Json expected_;
  const Tokenizer tokenizer_;
  HfWeights weights_;
  std::unique_ptr<Transformer> model_;
  TaskSet set_;
  std::vector<std::vector<Question>> questions_;  // by task
};

TEST_F(Harness, BuildsTheSameContexts) {
  EXPECT_EQ(set_.tasks.size(), expected_["results"].size());
  for (size_t i = 0; i < set_.tasks.size(); ++i) {
    const Json& contexts = expected_["results"].at(set_.tasks[i].name)["contexts"];
    ASSERT_EQ(questions_[i].size(), contexts.size());
    for (size_t q = 0; q < contexts.size(); ++q)
      EXPECT_EQ(questions_[i][q].context, contexts[q].get<std::string>()) << set_.tasks[i].name << " " << q;
  }
}

// Equal up to the rounding of float32 sums, and bitwise equal for any batch size.
TEST_F(Harness, LoglikelihoodsMatch) {
  for (size_t i = 0; i < set_.tasks.size(); ++i) {
    const Json& expected = expected_["results"].at(set_.tasks[i].name);
    const auto one = found(i, 1), many = found(i, 13);
    size_t at = 0;
    for (size_t q = 0; q < questions_[i].size(); ++q)
      for (size_t c = 0; c < questions_[i][q].continuations.size(); ++c, ++at) {
        const double nats = expected["loglikelihoods"][q].at(c).get<double>();
        EXPECT_NEAR(one[at].nats, nats, 1e-5 * std::abs(nats) + 1e-5) << set_.tasks[i].name << " " << q << " " << c;
        EXPECT_EQ(one[at].greedy, expected["greedy"][q].at(c).get<bool>()) << set_.tasks[i].name << " " << q;
        EXPECT_EQ(one[at].nats, many[at].nats) << set_.tasks[i].name << " " << q;
        EXPECT_EQ(one[at].greedy, many[at].greedy);
      }
    EXPECT_EQ(at, one.size());
  }
}

TEST_F(Harness, ScoresMatch) {
  std::vector<TaskScore> scores;
  for (size_t i = 0; i < set_.tasks.size(); ++i) {
    scores.push_back(score_task(set_.tasks[i], questions_[i], found(i, 8)));
    expect_scores(scores.back(), expected_["results"].at(scores.back().name)["scores"]);
  }
  ASSERT_EQ(set_.groups.size(), 1u);
  expect_scores(score_group(set_.groups[0], scores), expected_["groups"].at("exams"));
}

}  // namespace
}  // namespace witan
