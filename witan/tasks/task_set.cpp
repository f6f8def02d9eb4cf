#include "witan/tasks/task_set.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tasks/yaml_file.h"

namespace witan {
namespace {

using jinja::Entries;
using jinja::Value;

constexpr int kMostGroupLevels = 16;

// Files in .yaml below a folder, sorted.
std::vector<fs::path> yaml_files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const fs::path& path = entry.path();
    const bool yaml = path.extension() == ".yaml" || path.extension() == ".yml";
    if (yaml && entry.is_regular_file() && !path.filename().string().starts_with('_')) files.push_back(path);
  }
  std::ranges::sort(files);
  return files;
}

void require_no_rows(const fs::path& file) {
  static const std::set<std::string> kRows = {".jsonl", ".parquet", ".csv", ".tsv", ".gz", ".zst"};
  require<DataError>(!kRows.contains(file.extension()), file.string(),
                     ": a task is a .yaml file, and this is a file of rows, which a task names in dataset_kwargs: "
                     "{data_files: ...}");
}

std::string text_under(const Entries& keys, std::string_view key) {
  const Value* value = find(keys, key);
  return value && value->string() ? *value->string() : "";
}

bool is_group(const Entries& keys) {
  const Value* task = find(keys, "task");
  return task && (task->sequence() != nullptr || (find(keys, "group") && !find(keys, "dataset_path")));
}

std::string name_of(const Entries& keys, const fs::path& file) {
  if (!is_group(keys)) return text_under(keys, "task");
  const std::string name = text_under(keys, "group");
  return name.empty() ? file.stem().string() : name;
}

struct TaskFile {
  fs::path file;
  Entries keys;
};

class TaskFinder {
 public:
  void add(const fs::path& path) {
    std::error_code none;
    require<DataError>(fs::exists(path, none), path.string(), ": there is no such file or folder of tasks");
    if (!fs::is_directory(path, none)) {
      require_no_rows(path);
      add_found({path, entries_of(path)}, 0);
      return;
    }
    const std::vector<fs::path> files = yaml_files_in(path);
    require<DataError>(!files.empty(), path.string(), ": the folder has no tasks (files in .yaml)");
    for (const fs::path& file : files) add_found({file, entries_of(file)}, 0);
  }
  TaskSet take() { return std::move(set_); }

 private:
  static Entries entries_of(const fs::path& file) { return *read_yaml_file(file).entries(); }

  // Returns the names of the tasks that were added.
  std::vector<std::string> add_found(const TaskFile& found, int depth) {
    return is_group(found.keys) ? add_group(found, depth) : add_task(found);
  }

  std::vector<std::string> add_task(const TaskFile& found) {
    TaskConfig task = parse_task(found.keys, found.file);
    const auto same = std::ranges::find(set_.tasks, task.name, &TaskConfig::name);
    if (same == set_.tasks.end()) {
      set_.tasks.push_back(task);
      return {task.name};
    }
    require<DataError>(same->file == found.file, found.file.string(), ": the task ", task.name, " is in ",
                       same->file.string(), ", too: give one of them another name");
    return {task.name};
  }

  std::vector<std::string> add_group(const TaskFile& found, int depth) {
    const std::string where = found.file.string();
    require<DataError>(depth < kMostGroupLevels, where, ": groups are nested more than ", kMostGroupLevels,
                       " deep: remove the cycle");
    GroupConfig group{name_of(found.keys, found.file), {}, metrics_of(found)};
    if (const auto same = std::ranges::find(set_.groups, group.name, &GroupConfig::name); same != set_.groups.end())
      return same->tasks;
    const Value& members = *find(found.keys, "task");
    for (const Value& member : members.sequence() ? *members.sequence()->items : jinja::Items{members})
      for (const TaskFile& one : files_of(member, found))
        for (const std::string& task : add_found(one, depth + 1))
          if (std::ranges::find(group.tasks, task) == group.tasks.end()) group.tasks.push_back(task);
    require<DataError>(!group.tasks.empty(), where, ": the group ", group.name, " has no tasks");
    set_.groups.push_back(group);
    return group.tasks;
  }

  // `member` is a name, or a mapping that is a task or group itself or overrides keys of the one it names.
  std::vector<TaskFile> files_of(const Value& member, const TaskFile& group) {
    if (const std::string* name = member.string()) return named(*name, group.file);
    const std::string where = group.file.string();
    const Entries* keys = member.entries();
    require<DataError>(keys != nullptr, where, ": task: expected names and mappings, found ", type_name(member));
    if (is_group(*keys) || find(*keys, "dataset_path") != nullptr) return {{group.file, *keys}};
    const std::string name = text_under(*keys, "task");
    require<DataError>(!name.empty(), where, ": task: a mapping has no task");
    std::vector<TaskFile> files = named(name, group.file);
    for (TaskFile& file : files)
      for (const auto& [key, value] : *keys) {
        std::erase_if(file.keys, [&key = key](const auto& entry) { return equal(entry.first, key); });
        file.keys.emplace_back(key, value);
      }
    return files;
  }

  std::vector<TaskFile> named(const std::string& name, const fs::path& beside) {
    const std::vector<TaskFile>& all = folder_of(beside.parent_path());
    std::vector<TaskFile> tagged;
    std::vector<std::string> names;
    for (const TaskFile& one : all) {
      names.push_back(name_of(one.keys, one.file));
      if (names.back() == name) return {one};
      const Value* tag = find(one.keys, "tag");
      if (!tag) continue;
      for (const Value& each : tag->sequence() ? *tag->sequence()->items : jinja::Items{*tag})
        if (each.string() && *each.string() == name) tagged.push_back(one);
    }
    require<DataError>(!tagged.empty(), beside.string(), ": task: there is no task, group or tag ", clipped(name),
                       " in ", beside.parent_path().empty() ? "." : beside.parent_path().string(),
                       suggestion(name, names));
    return tagged;
  }

  // Ignores files that are not tasks.
  const std::vector<TaskFile>& folder_of(const fs::path& folder) {
    const auto [known, is_new] = folders_.try_emplace(folder);
    if (is_new)
      for (const fs::path& file : yaml_files_in(folder.empty() ? fs::path(".") : folder)) {
        Entries keys = entries_of(file);
        if (find(keys, "task")) known->second.push_back({file, std::move(keys)});
      }
    return known->second;
  }

  static std::vector<GroupMetric> metrics_of(const TaskFile& found) {
    const Value* list = find(found.keys, "aggregate_metric_list");
    std::vector<GroupMetric> metrics;
    if (!list || list->is_none()) return metrics;
    const std::string where = cat(found.file.string(), ": aggregate_metric_list: ");
    for (const Value& one : list->sequence() ? *list->sequence()->items : jinja::Items{*list}) {
      require<DataError>(one.entries() != nullptr, where, "expected mappings, found ", type_name(one));
      const std::string aggregation = text_under(*one.entries(), "aggregation");
      require<DataError>(aggregation.empty() || aggregation == "mean", where, "aggregation ", clipped(aggregation),
                         " is not supported: mean is");
      GroupMetric metric{text_under(*one.entries(), "metric")};
      require<DataError>(!metric.metric.empty(), where, "metric is missing");
      if (const Value* weighted = find(*one.entries(), "weight_by_size")) metric.weight_by_size = truth(*weighted);
      metrics.push_back(metric);
    }
    return metrics;
  }

  TaskSet set_;
  std::map<fs::path, std::vector<TaskFile>> folders_;
};

}  // namespace

TaskSet read_tasks(const std::vector<fs::path>& paths) {
  TaskFinder finder;
  for (const fs::path& path : paths) finder.add(path);
  return finder.take();
}

}  // namespace witan
