// The rows of a task's dataset.
#pragma once

#include <string>
#include <vector>

#include "witan/tasks/task_config.h"

namespace witan {

// A row: its columns and their values. All rows of a split have the same columns; what a row of JSON lacks is none.
using TaskRow = jinja::Entries;

// The rows of a split. dataset_path is "json", "parquet" or "arrow", with the files in data_files, or a folder, such as
// `witan data fetch` makes: of dataset_name's folder in it, if there is one, the files and folders called after the
// split ("test.jsonl", "test-00000-of-00001.parquet", "data/test/..."). Paths are relative to the task's file, or to
// the current folder. Throws DataError naming the task's file and the way out, and for a row that cannot be read;
// CorruptionError, IoError.
std::vector<TaskRow> read_split(const TaskConfig& task, const std::string& split);

}  // namespace witan
