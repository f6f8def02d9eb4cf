#include "witan/tasks/task_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tasks/python.h"

namespace witan {
namespace {

using jinja::Entries;
using jinja::Items;
using jinja::Value;

const char* const kGenerates =
    "Witan compares the probabilities of given answers and does not judge texts: run such a task with "
    "lm-evaluation-harness against `witan serve` (--model local-completions)";
const char* const kPython = "is Python code, which Witan does not run: write its results into the rows of the data";

// For unsupported keys of lm-evaluation-harness: the reason and the way out.
const std::map<std::string_view, std::string>& refused_keys() {
  static const std::map<std::string_view, std::string> all = {
      {"process_docs", cat("process_docs ", kPython)},
      {"process_results", cat("process_results ", kPython)},
      {"custom_dataset", cat("custom_dataset ", kPython)},
      {"filter_list", cat("filters work on generated text. ", kGenerates)},
      {"generation_kwargs", kGenerates},
      {"doc_to_image", "images are not supported: Witan's models read text"},
      {"doc_to_audio", "sounds are not supported: Witan's models read text"},
      {"gen_prefix", "write what it says at the end of doc_to_text"},
      {"use_prompt", "prompts of promptsource are not supported: write doc_to_text, doc_to_choice and doc_to_target"},
      {"unsafe_code", cat("unsafe_code ", kPython)},
      {"class", cat("a class ", kPython)},
      {"fewshot_indices", "list the examples in fewshot_config.samples"}};
  return all;
}

// All keys that a task may have. Other keys are reported before missing ones, since they are most likely misspelt.
const std::vector<std::string>& task_keys() {
  static const std::vector<std::string> all = {"task",
                                               "task_alias",
                                               "tag",
                                               "group",
                                               "output_type",
                                               "dataset_path",
                                               "dataset_name",
                                               "dataset_kwargs",
                                               "training_split",
                                               "validation_split",
                                               "test_split",
                                               "fewshot_split",
                                               "doc_to_text",
                                               "doc_to_target",
                                               "doc_to_choice",
                                               "target_delimiter",
                                               "description",
                                               "num_fewshot",
                                               "fewshot_delimiter",
                                               "fewshot_config",
                                               "metric_list",
                                               "repeats",
                                               "metadata",
                                               "should_decontaminate",
                                               "doc_to_decontamination_query"};
  return all;
}

// The keys of a mapping, taken one by one; keys left at the end are unsupported.
class TaskKeys {
 public:
  TaskKeys(Entries entries, std::string where) : entries_(std::move(entries)), where_(std::move(where)) {
    for (const auto& [key, value] : entries_) refuse_code(*key.string(), value);
  }

  [[noreturn]] void fail(std::string_view key, std::string_view why) const {
    throw DataError(cat(where_, ": ", key, ": ", why));
  }

  Value take(std::string_view key) {
    taken_.emplace_back(key);
    const auto found = std::ranges::find_if(entries_, [&](const auto& entry) { return *entry.first.string() == key; });
    if (found == entries_.end()) return {};
    Value value = std::move(found->second);
    entries_.erase(found);
    return value.is_none() ? Value() : value;
  }
  std::optional<std::string> text(std::string_view key) {
    const Value value = take(key);
    if (value.is_undefined()) return std::nullopt;
    if (!value.string()) fail(key, cat("expected text, found ", type_name(value)));
    return *value.string();
  }
  int64_t integer(std::string_view key, int64_t otherwise) {
    const Value value = take(key);
    if (value.is_undefined()) return otherwise;
    if (!value.as<int64_t>()) fail(key, cat("expected an integer, found ", type_name(value)));
    return *value.as<int64_t>();
  }
  bool flag(std::string_view key, bool otherwise) {
    const Value value = take(key);
    if (value.is_undefined()) return otherwise;
    if (!value.as<bool>()) fail(key, cat("expected true or false, found ", type_name(value)));
    return *value.as<bool>();
  }
  // A mapping; empty if the key is absent.
  Entries mapping(std::string_view key) {
    const Value value = take(key);
    if (value.is_undefined()) return {};
    if (!value.entries()) fail(key, cat("expected a mapping, found ", type_name(value)));
    return *value.entries();
  }
  // A list; a single value stands for a list of one.
  Items list(std::string_view key) {
    const Value value = take(key);
    if (value.is_undefined()) return {};
    return value.sequence() ? *value.sequence()->items : Items{value};
  }
  void ignore(std::initializer_list<std::string_view> keys) {
    for (const std::string_view key : keys) take(key);
  }
  void refuse_rest() const {
    for (const auto& [name, value] : entries_) {
      const std::string& key = *name.string();
      if (value.is_none()) continue;
      if (const auto known = refused_keys().find(key); known != refused_keys().end()) fail(key, known->second);
      refuse_unknown(key, taken_);
    }
  }
  // Refuses keys that are neither in `known` nor in refused_keys().
  void refuse_others(const std::vector<std::string>& known) const {
    for (const auto& [name, value] : entries_)
      if (const std::string& key = *name.string();
          !value.is_none() && !refused_keys().contains(key) && std::ranges::find(known, key) == known.end())
        refuse_unknown(key, known);
  }
  const std::string& where() const { return where_; }

 private:
  [[noreturn]] void refuse_unknown(const std::string& key, const std::vector<std::string>& known) const {
    fail(clipped(key),
         cat("Witan does not know this key", suggestion(key, known), ": remove it if the results do not depend on it"));
  }
  void refuse_code(std::string_view key, const Value& value) const {
    if (const Entries* inner = value.entries()) {
      for (const auto& [name, of] : *inner)
        if (name.string()->starts_with('!') && of.string())
          fail(key, cat(*name.string(), " ", clipped(*of.string()), " ", kPython));
    }
  }

  Entries entries_;
  std::string where_;
  std::vector<std::string> taken_;  // all keys asked for
};

void take_prompt(TaskKeys& keys, TaskPrompt& prompt) {
  const auto take = [&](std::string_view key, Value& into) {
    if (Value given = keys.take(key); !given.is_undefined()) into = std::move(given);
  };
  take("doc_to_text", prompt.text);
  take("doc_to_target", prompt.target);
  take("doc_to_choice", prompt.choices);
  if (const Entries* choices = prompt.choices.entries()) {
    Items values;
    for (const auto& [name, value] : *choices) values.push_back(value);
    prompt.choices = Value::list(std::move(values));
  }
  if (prompt.text.as<int64_t>())
    keys.fail("doc_to_text", "an index of a choice as question is not supported: write the question's text");
  if (!prompt.text.is_undefined() && !prompt.text.string())
    keys.fail("doc_to_text", cat("expected a column or a template, found ", type_name(prompt.text)));
  if (!prompt.choices.is_undefined() && !prompt.choices.string() && !prompt.choices.sequence())
    keys.fail("doc_to_choice", cat("expected a column, a template or a list, found ", type_name(prompt.choices)));
  if (auto delimiter = keys.text("target_delimiter")) prompt.target_delimiter = *delimiter;
}

void take_fewshot(TaskKeys& keys, TaskConfig& task) {
  TaskFewshot& fewshot = task.fewshot;
  fewshot.prompt = task.prompt;
  fewshot.count = keys.integer("num_fewshot", 0);
  if (fewshot.count < 0) keys.fail("num_fewshot", "must not be negative");
  fewshot.split = keys.text("fewshot_split");
  if (auto delimiter = keys.text("fewshot_delimiter")) fewshot.delimiter = *delimiter;
  TaskKeys own(keys.mapping("fewshot_config"), cat(keys.where(), ": fewshot_config"));
  if (auto split = own.text("split")) fewshot.split = split;
  if (auto delimiter = own.text("fewshot_delimiter")) fewshot.delimiter = *delimiter;
  take_prompt(own, fewshot.prompt);
  const std::string sampler = own.text("sampler").value_or("default");
  if (sampler != "default" && sampler != "first_n")
    own.fail("sampler", cat(clipped(sampler), " is not supported: default and first_n are"));
  fewshot.first = sampler == "first_n";
  const Value samples = own.take("samples");
  if (!samples.is_undefined() && !samples.sequence())
    own.fail("samples", cat("expected a list of rows, found ", type_name(samples)));
  if (samples.sequence()) fewshot.samples = *samples.sequence()->items;
  own.refuse_rest();
}

void take_dataset(TaskKeys& keys, TaskConfig& task) {
  const auto path = keys.text("dataset_path");
  if (!path) keys.fail("dataset_path", "is missing: give \"json\" with dataset_kwargs, or a folder");
  task.dataset_path = *path;
  task.dataset_name = keys.text("dataset_name").value_or("");
  TaskKeys own(keys.mapping("dataset_kwargs"), cat(keys.where(), ": dataset_kwargs"));
  task.data_files = own.take("data_files");
  own.ignore({"trust_remote_code"});
  own.refuse_rest();
  task.training_split = keys.text("training_split");
  task.validation_split = keys.text("validation_split");
  task.test_split = keys.text("test_split");
  if (!task.test_split && !task.validation_split)
    keys.fail("test_split", "the split to evaluate on is missing: give test_split or validation_split");
}

std::vector<std::string> metrics_known(TaskConfig::Output output) {
  using Names = std::vector<std::string>;
  return output == TaskConfig::Output::multiple_choice ? Names{"acc", "acc_norm", "acc_bytes"}
                                                       : Names{"acc", "perplexity"};
}

void take_metrics(TaskKeys& keys, TaskConfig& task) {
  const auto known = metrics_known(task.output);
  for (const Value& one : keys.list("metric_list")) {
    if (!one.entries()) keys.fail("metric_list", cat("expected mappings with metric, found ", type_name(one)));
    TaskKeys own(*one.entries(), cat(keys.where(), ": metric_list"));
    const std::string metric = own.text("metric").value_or("");
    if (std::ranges::find(known, metric) == known.end())
      own.fail("metric",
               cat(clipped(metric), " is not supported: ", fmt::format("{}", fmt::join(known, ", ")), " are"));
    const std::string aggregation = own.text("aggregation").value_or("");
    if (!aggregation.empty() && aggregation != (metric == "perplexity" ? "perplexity" : "mean"))
      own.fail("aggregation", cat(clipped(aggregation), " is not supported for ", metric));
    own.ignore({"higher_is_better"});
    own.refuse_rest();
    task.metrics.push_back(metric);
  }
  if (!task.metrics.empty()) return;
  using Names = std::vector<std::string>;
  task.metrics =
      task.output == TaskConfig::Output::multiple_choice ? Names{"acc", "acc_norm"} : Names{"perplexity", "acc"};
}

}  // namespace

TaskConfig parse_task(const Entries& entries, const fs::path& file) {
  TaskKeys keys(entries, file.string());
  keys.refuse_others(task_keys());
  TaskConfig task;
  task.file = file;
  task.name = keys.text("task").value_or("");
  if (task.name.empty()) keys.fail("task", "the task's name is missing");
  const std::string output = keys.text("output_type").value_or("generate_until");
  if (output == "generate_until" || output == "loglikelihood_rolling")
    keys.fail("output_type", output == "generate_until"
                                 ? cat(output, " is not supported. ", kGenerates)
                                 : cat(output, " is not supported: `witan eval --data` gives bits per byte of a text"));
  if (output != "multiple_choice" && output != "loglikelihood")
    keys.fail("output_type", cat(clipped(output), " is not supported: multiple_choice and loglikelihood are"));
  task.output = output == "loglikelihood" ? TaskConfig::Output::loglikelihood : TaskConfig::Output::multiple_choice;
  take_dataset(keys, task);
  take_prompt(keys, task.prompt);
  if (task.prompt.text.is_undefined()) keys.fail("doc_to_text", "is missing");
  if (task.prompt.target.is_undefined()) keys.fail("doc_to_target", "is missing");
  if (task.output == TaskConfig::Output::multiple_choice && task.prompt.choices.is_undefined())
    keys.fail("doc_to_choice", "is missing");
  task.description = keys.text("description").value_or("");
  take_fewshot(keys, task);
  take_metrics(keys, task);
  if (keys.integer("repeats", 1) != 1) keys.fail("repeats", "must be 1: the same answers have the same probabilities");
  keys.ignore({"task_alias", "tag", "metadata", "should_decontaminate", "doc_to_decontamination_query"});
  if (const Value group = keys.take("group"); !group.is_undefined() && !group.string() && !group.sequence())
    keys.fail("group", "expected a name");
  keys.refuse_rest();
  return task;
}

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
