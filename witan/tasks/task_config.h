// The configurations of benchmarks and groups of them, and the rows of their datasets, in the format of
// lm-evaluation-harness's tasks (docs/formats/tasks.md;
// https://github.com/EleutherAI/lm-evaluation-harness/blob/main/docs/task_guide.md, version 0.4.13). Keys that Witan
// does not support are refused by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/tokenizer/chat/value.h"

namespace witan {

// How a row becomes a question and its answer. Each setting is a column's name, a template, or for `target` the index
// of a choice, for `choices` a list; undefined if the file does not set it.
struct TaskPrompt {
  jinja::Value text, target, choices;
  std::string target_delimiter = " ";  // between the question and an answer
};

struct TaskFewshot {
  TaskPrompt prompt;  // of the examples
  std::string delimiter = "\n\n";
  std::optional<std::string> split;
  std::optional<jinja::Items> samples;  // listed in the file, instead of a split
  bool first = false;                   // the first rows of the split, instead of a random choice for each question
  int64_t count = 0;
};

struct TaskConfig {
  enum class Output : uint8_t { multiple_choice, loglikelihood };

  std::string name;
  fs::path file;  // for messages; paths in the task are relative to its folder
  Output output = Output::multiple_choice;
  std::string dataset_path, dataset_name;
  jinja::Value data_files;  // a file, a list of files, or either per split; undefined: found in dataset_path
  std::optional<std::string> training_split, validation_split, test_split;
  TaskPrompt prompt;
  std::string description;  // a column or a template, placed before everything
  TaskFewshot fewshot;
  std::vector<std::string> metrics;  // acc, acc_norm, acc_bytes; for loglikelihood acc, perplexity

  // The split whose rows are questions: test_split, else validation_split.
  const std::string& split() const { return test_split ? *test_split : *validation_split; }
};

// Throws DataError naming the file, the key and the way out if a key is missing, unsupported or has a wrong type.
TaskConfig parse_task(const jinja::Entries& keys, const fs::path& file);

// A row: its columns and their values. All rows of a split have the same columns; members that a JSON row lacks are
// none.
using TaskRow = jinja::Entries;

// Reads the rows of a split. dataset_path is "json", "parquet" or "arrow", with the files in data_files, or a folder
// such as `witan data fetch` creates; there, the rows come from files and folders named after the split ("test.jsonl",
// "test-00000-of-00001.parquet", "data/test/..."), in the subfolder dataset_name if there is one. Paths are relative to
// the task's file or to the current folder. Throws DataError naming the task's file and the way out, also for a row
// that cannot be read; CorruptionError, IoError.
std::vector<TaskRow> read_split(const TaskConfig& task, const std::string& split);

struct GroupMetric {
  std::string metric;
  bool weight_by_size = true;  // by rows; else all tasks count the same
};

struct GroupConfig {
  std::string name;
  std::vector<std::string> tasks;    // names of all tasks in it, including those of nested groups
  std::vector<GroupMetric> metrics;  // of the group as a whole; empty: the group is only a list of tasks
};

struct TaskSet {
  std::vector<TaskConfig> tasks;  // with unique names
  std::vector<GroupConfig> groups;
};

// Reads tasks from files and folders; of a folder all .yaml and .yml files except those whose names start with "_",
// which others include. The members of a group (tasks, groups, tags of tasks) are searched in the folder of the group's
// file. Throws DataError naming the file and the way out; IoError.
TaskSet read_tasks(const std::vector<fs::path>& paths);

}  // namespace witan
