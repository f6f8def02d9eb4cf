#include "witan/tasks/task_scores.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace witan {
namespace {

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

std::optional<double> standard_error_of(const std::vector<double>& values) {
  if (values.size() < 2) return std::nullopt;
  const double mean = mean_of(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const auto n = static_cast<double>(values.size());
  return std::sqrt(squares / (n - 1)) / std::sqrt(n);
}

double length_for(const std::string& metric, const std::string& choice) {
  if (metric == "acc") return 1;
  return static_cast<double>(metric == "acc_norm" ? jinja::characters(choice) : static_cast<int64_t>(choice.size()));
}

// Whether the choice that the metric takes for the best is right.
bool is_right(const std::string& metric, const Question& question, std::span<const Loglikelihood> found) {
  size_t best = 0;
  double most = -INFINITY;
  for (size_t i = 0; i < found.size(); ++i)
    if (const double score = found[i].nats / length_for(metric, question.choices[i]); i == 0 || score > most) {
      best = i;
      most = score;
    }
  return std::ranges::find(question.gold, static_cast<int64_t>(best)) != question.gold.end();
}

}  // namespace

TaskScore score_task(const TaskConfig& task, std::span<const Question> questions,
                     std::span<const Loglikelihood> found) {
  TaskScore score{task.name, static_cast<int64_t>(questions.size()), {}};
  for (const std::string& metric : task.metrics) {
    std::vector<double> values;
    size_t begin = 0;
    for (const Question& question : questions) {
      const auto of = found.subspan(begin, question.continuations.size());
      begin += of.size();
      if (task.output == TaskConfig::Output::multiple_choice)
        values.push_back(is_right(metric, question, of) ? 1 : 0);
      else
        values.push_back(metric == "perplexity" ? of[0].nats : of[0].greedy ? 1 : 0);
    }
    assert(begin == found.size());
    if (metric == "perplexity")
      score.metrics.push_back({metric, std::exp(-mean_of(values)), std::nullopt});
    else
      score.metrics.push_back({metric, mean_of(values), standard_error_of(values)});
  }
  return score;
}

TaskScore score_group(const GroupConfig& group, std::span<const TaskScore> tasks) {
  TaskScore score{group.name, 0, {}};
  const auto in_group = [&](const TaskScore& task) {
    return std::ranges::find(group.tasks, task.name) != group.tasks.end();
  };
  for (const TaskScore& task : tasks) score.rows += in_group(task) ? task.rows : 0;
  for (const GroupMetric& wanted : group.metrics) {
    double sum = 0, weights = 0, rows = 0, variances = 0, squares = 0, count = 0;
    bool errors = true;
    for (const TaskScore& task : tasks) {
      const auto metric = std::ranges::find(task.metrics, wanted.metric, &TaskMetric::name);
      if (!in_group(task) || metric == task.metrics.end()) continue;
      const auto n = static_cast<double>(task.rows);
      const double error = metric->standard_error.value_or(0), weight = wanted.weight_by_size ? n : 1;
      errors = errors && metric->standard_error.has_value();
      sum += weight * metric->value;
      weights += weight;
      rows += n;
      variances += (n - 1) * error * error * n;
      squares += error * error;
      ++count;
    }
    if (count == 0) continue;
    TaskMetric metric{wanted.metric, sum / weights, std::nullopt};
    if (errors)
      metric.standard_error =
          wanted.weight_by_size ? std::sqrt(variances / (rows - count) / rows) : std::sqrt(squares) / count;
    score.metrics.push_back(metric);
  }
  return score;
}

}  // namespace witan
