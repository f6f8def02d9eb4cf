#include <algorithm>
#include <set>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/data/rows/row_reader.h"
#include "witan/tasks/task_config.h"

namespace witan {
namespace {

using jinja::Items;
using jinja::Value;

fs::path located(const TaskConfig& task, const std::string& path) {
  const fs::path beside = task.file.parent_path() / path;
  std::error_code none;
  return fs::exists(beside, none) ? beside : fs::path(path);
}

// Whether a file or folder is named after the split: "test.jsonl.gz", "test-00000-of-00002.parquet", "test".
bool belongs_to(const fs::path& path, const std::string& split) {
  const std::string name = path.filename().string();
  if (!name.starts_with(split)) return false;
  return name.size() == split.size() || std::string_view("-._").find(name[split.size()]) != std::string_view::npos;
}

std::vector<fs::path> files_in_folder(const TaskConfig& task, const std::string& split) {
  const fs::path named = located(task, task.dataset_path);
  std::error_code none;
  require<DataError>(fs::is_directory(named, none), task.file.string(), ": dataset_path: ", clipped(task.dataset_path),
                     " is not a folder here. Of a dataset of the Hugging Face hub, fetch it (`witan data fetch ",
                     shell_word(task.dataset_path),
                     " --to FOLDER`) and set dataset_path to the folder; of files, set "
                     "dataset_path to json or parquet and dataset_kwargs.data_files to them");
  fs::path folder = named;
  if (!task.dataset_name.empty() && fs::is_directory(named / task.dataset_name, none)) folder /= task.dataset_name;
  for (const fs::path& place : {folder, folder / "data"}) {
    std::vector<fs::path> files;
    if (!fs::is_directory(place, none)) continue;
    for (const auto& entry : fs::directory_iterator(place))
      if (belongs_to(entry.path(), split)) files.push_back(entry.path());
    std::ranges::sort(files);
    if (!files.empty()) return files;
  }
  throw DataError(cat(task.file.string(), ": the split ", clipped(split), " has no files in ", folder.string(),
                      ": files are called after their split, such as ", split, ".jsonl"));
}

// Those of data_files that are the split's: without names of splits all of it is "train", as `datasets` has it.
std::vector<fs::path> files_of_split(const TaskConfig& task, const std::string& split) {
  const bool format = task.dataset_path == "json" || task.dataset_path == "parquet" || task.dataset_path == "arrow";
  if (!format && task.data_files.is_undefined()) return files_in_folder(task, split);
  const std::string where = cat(task.file.string(), ": dataset_kwargs.data_files: ");
  require<DataError>(!task.data_files.is_undefined(), where, "is missing: dataset_path = ", task.dataset_path,
                     " needs the files");
  const Value* files = &task.data_files;
  if (const jinja::Entries* splits = files->entries()) {
    files = find(*splits, split);
    std::vector<std::string> names;
    for (const auto& [name, of] : *splits) names.push_back(*name.string());
    require<DataError>(files != nullptr, where, "there is no split ", clipped(split), suggestion(split, names));
  } else {
    require<DataError>(split == "train", where, "files that are not named for splits are the split train, and ",
                       clipped(split), " is asked for: write `data_files: {", split, ": FILE}`");
  }
  std::vector<fs::path> paths;
  for (const Value& file : files->sequence() ? *files->sequence()->items : Items{*files}) {
    require<DataError>(file.string() != nullptr, where, "expected paths, found ", type_name(file));
    paths.push_back(located(task, *file.string()));
  }
  return paths;
}

// Every row gets all columns, in the order in which they first came.
void fill_columns(std::vector<TaskRow>& rows) {
  std::vector<std::string> columns;
  std::set<std::string> known;
  for (const TaskRow& row : rows)
    for (const auto& [name, value] : row)
      if (known.insert(*name.string()).second) columns.push_back(*name.string());
  for (TaskRow& row : rows) {
    if (row.size() == columns.size()) continue;
    for (const std::string& name : columns)
      if (!find(row, name)) row.emplace_back(name, Value::none());
  }
}

}  // namespace

std::vector<TaskRow> read_split(const TaskConfig& task, const std::string& split) {
  const Sources sources = find_sources(files_of_split(task, split));
  std::vector<TaskRow> rows;
  for (const Source& source : sources.files) {
    require<DataError>(source.kind != SourceKind::text, source.path.string(),
                       ": a task's rows are JSON Lines (.jsonl), Parquet or Arrow, not plain text");
    RowReader reader({});
    const auto keep = [&](const Row& row) {
      const Value value = jinja::from_json(row.text, cat(source.path.string(), ": row ", row.position));
      rows.push_back(*value.entries());
    };
    const auto refuse = [&](const UnusableRow& row) {
      throw DataError(cat(source.path.string(), ": row ", row.position, " is unusable: ", row.reason,
                          ". A benchmark without some of its rows is another one: mend the file"));
    };
    reader.read(source, 0, keep, refuse);
  }
  require<DataError>(!rows.empty(), task.file.string(), ": the split ", clipped(split), " has no rows");
  fill_columns(rows);
  return rows;
}

}  // namespace witan
