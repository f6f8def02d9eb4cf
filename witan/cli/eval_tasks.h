// Benchmarks of `witan eval --tasks`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/cli/args/options.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/command.h"
#include "witan/tasks/task_scores.h"
#include "witan/train/run/load_run.h"

namespace witan::cli {

struct EvalTasksArgs {
  std::vector<std::string> files;  // and folders; empty: no benchmarks
  int64_t fewshot = -1;            // -1: each task's own
  int64_t limit = 0;               // of rows of each task; 0: all
  int64_t batch_size = 8;
  int64_t max_length = 0;   // 0: the longest text that the model has learned from or was made for
  std::string log_samples;  // a file; empty: none
};

// The flags beside `tasks`, which is --tasks, and without which they are refused.
void add_eval_tasks_args(CLI::App& command, EvalTasksArgs& args, RunArgs& run, Option tasks);

struct EvalTasksResult {
  std::vector<TaskScore> tasks, groups;
  std::vector<int64_t> fewshot;  // of each task
};

EvalTasksResult evaluate_tasks(Context& context, const EvalTasksArgs& args, const RunArgs& run_args,
                               const TrainedRun& run);

std::string tasks_table(const TrainedRun& run, const EvalTasksResult& result);
// With lm-evaluation-harness's names: {"results": {TASK: {"acc,none": 0.5, "acc_stderr,none": 0.1, ...}}, ...}.
std::string tasks_json(const TrainedRun& run, const EvalTasksResult& result);

}  // namespace witan::cli
