// A benchmark's configuration, in the format of lm-evaluation-harness's tasks (docs/formats/tasks.md;
// https://github.com/EleutherAI/lm-evaluation-harness/blob/main/docs/task_guide.md, version 0.4.13). What Witan does
// not understand is refused by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/tokenizer/chat/value.h"

namespace witan {

// How a row becomes a question and its answer. Each is what the file gives: the name of a column, or a template, or
// (`target`) the index of a choice, or (`choices`) a list; undefined: not given.
struct TaskPrompt {
  jinja::Value text, target, choices;
  std::string target_delimiter = " ";  // between the question and an answer
};

struct TaskFewshot {
  TaskPrompt prompt;  // of examples
  std::string delimiter = "\n\n";
  std::optional<std::string> split;
  std::optional<jinja::Items> samples;  // given in the file, instead of a split
  bool first = false;                   // the first ones of the split, instead of a random choice for each question
  int64_t count = 0;
};

struct TaskConfig {
  enum class Output : uint8_t { multiple_choice, loglikelihood };

  std::string name;
  fs::path file;  // where it stands, for messages; paths in it are relative to its folder
  Output output = Output::multiple_choice;
  std::string dataset_path, dataset_name;
  jinja::Value data_files;  // a file, a list of them, or either for each split; undefined: found in dataset_path
  std::optional<std::string> training_split, validation_split, test_split;
  TaskPrompt prompt;
  std::string description;  // a column or a template, before everything
  TaskFewshot fewshot;
  std::vector<std::string> metrics;  // acc, acc_norm, acc_bytes; of loglikelihood acc, perplexity

  // The split whose rows are questions: test_split, else validation_split.
  const std::string& split() const { return test_split ? *test_split : *validation_split; }
};

// Throws DataError naming the file, the key and the way out for what is missing, not understood or of the wrong kind.
TaskConfig parse_task(const jinja::Entries& keys, const fs::path& file);

// A row: its columns and their values. All rows of a split have the same columns; what a row of JSON lacks is none.
using TaskRow = jinja::Entries;

// The rows of a split. dataset_path is "json", "parquet" or "arrow", with the files in data_files, or a folder, such as
// `witan data fetch` makes: of dataset_name's folder in it, if there is one, the files and folders called after the
// split ("test.jsonl", "test-00000-of-00001.parquet", "data/test/..."). Paths are relative to the task's file, or to
// the current folder. Throws DataError naming the task's file and the way out, and for a row that cannot be read;
// CorruptionError, IoError.
std::vector<TaskRow> read_split(const TaskConfig& task, const std::string& split);

}  // namespace witan
