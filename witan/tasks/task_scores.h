// Scores of tasks and groups, as lm-evaluation-harness 0.4.13 computes them (lm_eval/api/task.py: process_results;
// lm_eval/api/metrics.py; lm_eval/api/group.py).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "witan/tasks/loglikelihood.h"
#include "witan/tasks/questions.h"
#include "witan/tasks/task_config.h"

namespace witan {

struct TaskMetric {
  std::string name;  // acc, acc_norm, acc_bytes, perplexity
  double value = 0;
  // Standard error of the mean: the sample's standard deviation over the square root of its size. nullopt for fewer
  // than two rows, and for perplexity, for which lm-evaluation-harness uses bootstrap samples.
  std::optional<double> standard_error;
};

struct TaskScore {
  std::string name;
  int64_t rows = 0;
  std::vector<TaskMetric> metrics;
};

// Scores a task. `found` has the log-likelihoods of all continuations, question by question. acc: the share of
// questions whose choice with the largest log-likelihood (the first of equal ones) is correct; acc_norm: the same with
// log-likelihoods divided by the number of characters of the choice; acc_bytes: by its bytes. For loglikelihood tasks
// acc is the share of greedy targets, and perplexity is e to the mean negative log-likelihood.
TaskScore score_task(const TaskConfig& task, std::span<const Question> questions, std::span<const Loglikelihood> found);

// Scores a group from the scores of its tasks in `tasks`: means weighted by rows, with the pooled standard error, or
// plain means. Tasks without the metric are omitted.
TaskScore score_group(const GroupConfig& group, std::span<const TaskScore> tasks);

}  // namespace witan
