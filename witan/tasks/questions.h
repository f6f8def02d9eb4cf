// The questions of a task: for each row a context and the continuations to compare, as lm-evaluation-harness
// 0.4.13 makes them (lm_eval/api/task.py: ConfigurableTask).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/tasks/task_config.h"

namespace witan {

struct Question {
  std::string context;
  std::vector<std::string> continuations;  // one per choice; for loglikelihood only the target
  std::vector<std::string> choices;        // without the delimiter; for loglikelihood none
  std::vector<int64_t> gold;               // indices of correct choices; empty for a row without a usable label
};

struct Questions {
  std::vector<Question> all;
  std::vector<std::string> warnings;  // about rows without a usable label, which count as wrong
};

struct QuestionOptions {
  int64_t limit = 0;     // number of rows; 0: all
  int64_t fewshot = -1;  // replaces the task's num_fewshot; -1: keeps it
  uint32_t seed = 1234;  // for few-shot examples: lm-evaluation-harness's fewshot_random_seed
};

// Throws DataError naming the task's file and the row if a template fails, choices are not a list of texts, there are
// too few examples, or no row of the split has a usable label; also throws what read_split() does.
Questions make_questions(const TaskConfig& task, const QuestionOptions& options);

}  // namespace witan
