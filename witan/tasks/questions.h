// The questions of a task: for each row a context and the continuations that are compared, as lm-evaluation-harness
// 0.4.13 makes them (lm_eval/api/task.py: ConfigurableTask).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/tasks/task_config.h"

namespace witan {

struct Question {
  std::string context;
  std::vector<std::string> continuations;  // one for each choice; of loglikelihood the target alone
  std::vector<std::string> choices;        // without the delimiter; of loglikelihood none
  std::vector<int64_t> gold;               // indices of right choices; a row without a usable label has none
};

struct Questions {
  std::vector<Question> all;
  std::vector<std::string> warnings;  // of rows without a usable label, which count as wrong
};

struct QuestionOptions {
  int64_t limit = 0;     // of rows; 0: all
  int64_t fewshot = -1;  // instead of the task's num_fewshot; -1: that
  uint32_t seed = 1234;  // of few-shot examples: lm-evaluation-harness's fewshot_random_seed
};

// Throws DataError naming the task's file and the row for templates that fail, choices that are no list of texts, more
// examples than there are, and splits without a single usable label; and what read_split() throws.
Questions make_questions(const TaskConfig& task, const QuestionOptions& options);

}  // namespace witan
