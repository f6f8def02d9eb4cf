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
#include "witan/tasks/task_set.h"

namespace witan {

struct TaskMetric {
  std::string name;  // acc, acc_norm, acc_bytes, perplexity
  double value = 0;
  // Of the mean: the sample's standard deviation over the square root of its size. None of fewer than two rows, and of
  // perplexity, for which lm-evaluation-harness draws bootstrap samples.
  std::optional<double> standard_error;
};

struct TaskScore {
  std::string name;
  int64_t rows = 0;
  std::vector<TaskMetric> metrics;
};

// Of a task. `found`: of all continuations of all questions, one question after the other. acc: the choice of the
// largest log-likelihood is right, the first of equal ones; acc_norm: the log-likelihood divided by the characters of
// the choice, as its name has meant there; acc_bytes: by its bytes. Of loglikelihood tasks acc is the share of targets
// that are greedy, and perplexity e to the mean of their negative log-likelihoods.
TaskScore score_task(const TaskConfig& task, std::span<const Question> questions, std::span<const Loglikelihood> found);

// Of a group, from its tasks' scores, which are among `tasks`: means weighted by rows with the pooled standard error,
// or plain ones. A task without the metric is left out.
TaskScore score_group(const GroupConfig& group, std::span<const TaskScore> tasks);

}  // namespace witan
