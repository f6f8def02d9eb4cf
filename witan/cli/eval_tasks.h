// Benchmarks of `witan eval --tasks`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/cli/args/options.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/command.h"
#include "witan/tasks/task_scores.h"
#include "witan/train/weights/load_run.h"

namespace witan::cli {

struct EvalTasksArgs {
  std::vector<std::string> files;  // files and folders of tasks; empty: no benchmarks
  int64_t fewshot = -1;            // examples before each question; -1: as many as the task says
  int64_t limit = 0;               // questions of each task; 0: all
  int64_t batch_size = 8;
  int64_t max_length = 0;   // tokens; 0: the longest text that the model was trained on or made for
  std::string log_samples;  // a file; empty: none
};

// Adds the flags that are allowed only together with --tasks (`tasks`).
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
