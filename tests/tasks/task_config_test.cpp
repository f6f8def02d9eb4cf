#include "witan/tasks/task_config.h"

#include <gmock/gmock.h>

#include "tasks/tasks_support.h"

namespace witan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::one_task;
using testing::put;
using testing::small_task;

class TaskConfigTest : public ::testing::Test {
 protected:
  TaskConfig read(const std::string& more) { return one_task(put(folder_ / "t.yaml", small_task("small", more))); }
  std::string refusal(const std::string& more) {
    return testing::refusal_of_task(folder_ / "t.yaml", small_task("small", more));
  }
  test::TempFolder folder_;
};

TEST_F(TaskConfigTest, HasTheHarnesssDefaults) {
  const TaskConfig task = read("");
  EXPECT_EQ(task.name, "small");
  EXPECT_EQ(task.split(), "test");
  EXPECT_EQ(task.prompt.target_delimiter, " ");
  EXPECT_EQ(task.fewshot.delimiter, "\n\n");
  EXPECT_EQ(task.fewshot.count, 0);
  EXPECT_FALSE(task.fewshot.first);
  EXPECT_THAT(task.metrics, ElementsAre("acc", "acc_norm"));
  put(folder_ / "l.yaml",
      "task: l\ndataset_path: x\nvalidation_split: v\noutput_type: loglikelihood\ndoc_to_text: a\n"
      "doc_to_target: b\n");
  const TaskConfig likely = one_task(folder_ / "l.yaml");
  EXPECT_EQ(likely.split(), "v");
  EXPECT_THAT(likely.metrics, ElementsAre("perplexity", "acc"));
}

TEST_F(TaskConfigTest, ExamplesHaveTheirOwnSettings) {
  const TaskConfig task = read(
      "num_fewshot: 3\ntarget_delimiter: ''\nfewshot_delimiter: '--'\nfewshot_split: dev\ntag: [x]\n"
      "fewshot_config: {sampler: first_n, target_delimiter: ':', doc_to_text: other}\n");
  EXPECT_EQ(task.prompt.target_delimiter, "");
  EXPECT_EQ(task.fewshot.prompt.target_delimiter, ":");
  EXPECT_EQ(*task.fewshot.prompt.text.string(), "other");
  EXPECT_EQ(*task.fewshot.prompt.choices.string(), "choices");
  EXPECT_EQ(task.fewshot.delimiter, "--");
  EXPECT_EQ(task.fewshot.split, "dev");
  EXPECT_TRUE(task.fewshot.first);
  EXPECT_EQ(task.fewshot.count, 3);
}

TEST_F(TaskConfigTest, RefusesUnsupportedSettingsByName) {
  EXPECT_THAT(refusal("process_docs: !function utils.process_docs\n"),
              HasSubstr("t.yaml: process_docs: !function utils.process_docs is Python code, which Witan does not run: "
                        "write its results into the rows of the data"));
  EXPECT_THAT(refusal("filter_list: [{name: x}]\n"), HasSubstr("filter_list: filters work on generated text"));
  EXPECT_THAT(refusal("output_type: generate_until\n"),
              HasSubstr("run such a task with lm-evaluation-harness against"));
  EXPECT_THAT(refusal("generation_kwargs: {until: [x]}\n"), HasSubstr("generation_kwargs: Witan compares"));
  EXPECT_THAT(testing::refusal_of_task(folder_ / "t.jsonl", testing::kSmallRows),
              HasSubstr("t.jsonl: a task is a .yaml file, and this is a file of rows, which a task names in"));
  EXPECT_THAT(refusal("colour: red\n"), HasSubstr("t.yaml: colour: Witan does not know this key"));
  EXPECT_THAT(refusal("metric_lst: [{metric: acc}]\n"),
              HasSubstr("metric_lst: Witan does not know this key (did you mean metric_list?): remove it"));
  EXPECT_THAT(refusal("metric_list: [{metrik: acc, metric: acc}]\n"), HasSubstr("(did you mean metric?)"));
  EXPECT_THAT(refusal("metric_list: [{metric: f1}]\n"),
              HasSubstr("metric: f1 is not supported: acc, acc_norm, acc_bytes are"));
  EXPECT_THAT(refusal("metric_list: [{metric: acc, aggregation: median}]\n"), HasSubstr("median is not supported"));
  EXPECT_THAT(refusal("fewshot_config: {sampler: balanced}\n"), HasSubstr("balanced is not supported"));
  EXPECT_THAT(refusal("fewshot_config: {process_docs: !function f}\n"), HasSubstr("is Python code"));
  EXPECT_THAT(refusal("dataset_kwargs: {data_dir: x}\n"), HasSubstr("dataset_kwargs: data_dir: Witan does not know"));
  EXPECT_THAT(refusal("repeats: 3\n"), HasSubstr("repeats: must be 1"));
  EXPECT_THAT(refusal("doc_to_text: 0\n"), HasSubstr("an index of a choice as question is not supported"));
  // The error names the unsupported key before a missing one.
  std::string misspelt = small_task("small");
  misspelt.replace(misspelt.find("test_split"), 10, "test_spilt");
  EXPECT_THAT(testing::refusal_of_task(folder_ / "t.yaml", misspelt),
              HasSubstr("t.yaml: test_spilt: Witan does not know this key (did you mean test_split?)"));
  EXPECT_NO_THROW(read("repeats: 1\nshould_decontaminate: true\nmetadata: {version: 1}\nfilter_list: ~\n"));
}

TEST_F(TaskConfigTest, ErrorsNameMissingSettings) {
  const auto without = [&](const std::string& key) {
    std::string text = small_task("small");
    const size_t line = text.find(key);
    text.erase(line, text.find('\n', line) + 1 - line);
    return testing::refusal_of_task(folder_ / "t.yaml", text);
  };
  EXPECT_THAT(without("dataset_path"), HasSubstr("dataset_path: is missing"));
  EXPECT_THAT(without("test_split"), HasSubstr("give test_split or validation_split"));
  EXPECT_THAT(without("doc_to_text"), HasSubstr("doc_to_text: is missing"));
  EXPECT_THAT(without("doc_to_target"), HasSubstr("doc_to_target: is missing"));
  EXPECT_THAT(without("doc_to_choice"), HasSubstr("doc_to_choice: is missing"));
  EXPECT_THAT(without("output_type"), HasSubstr("generate_until is not supported"));
  EXPECT_THAT(refusal("num_fewshot: many\n"), HasSubstr("num_fewshot: expected an integer, found a string"));
}

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::put;
using testing::small_task;

class TaskSets : public ::testing::Test {
 protected:
  std::vector<std::string> names(const TaskSet& set) {
    std::vector<std::string> all;
    for (const TaskConfig& task : set.tasks) all.push_back(task.name);
    return all;
  }
  test::TempFolder folder_;
};

TEST_F(TaskSets, AFolderIsAllItsTasksWithoutParts) {
  put(folder_ / "b.yaml", small_task("b"));
  put(folder_ / "in/a.yml", small_task("a"));
  put(folder_ / "_part.yaml", "colour: red\n");
  put(folder_ / "rows.jsonl", "{}\n");
  EXPECT_THAT(names(read_tasks({folder_.path()})), ElementsAre("b", "a"));
  EXPECT_THAT(names(read_tasks({folder_ / "in/a.yml", folder_ / "b.yaml"})), ElementsAre("a", "b"));
}

TEST_F(TaskSets, GroupsNameTasksGroupsAndTags) {
  put(folder_ / "a.yaml", small_task("a", "tag: some\n"));
  put(folder_ / "b.yaml", small_task("b", "tag: [some, other]\n"));
  put(folder_ / "c.yaml", small_task("c"));
  put(folder_ / "code.yaml", "task: !function f\n");  // not selected
  put(folder_ / "inner.yaml", "group: inner\ntask: some\n");
  put(folder_ / "outer.yaml",
      "group: outer\ntask:\n  - inner\n  - {task: c, num_fewshot: 2}\naggregate_metric_list:\n"
      "  - {metric: acc, weight_by_size: false}\n  - metric: acc_norm\n");
  const TaskSet set = read_tasks({folder_ / "outer.yaml"});
  EXPECT_THAT(names(set), ElementsAre("a", "b", "c"));
  EXPECT_EQ(set.tasks[2].fewshot.count, 2);
  ASSERT_EQ(set.groups.size(), 2u);
  EXPECT_EQ(set.groups[0].name, "inner");
  EXPECT_THAT(set.groups[1].tasks, ElementsAre("a", "b", "c"));
  ASSERT_EQ(set.groups[1].metrics.size(), 2u);
  EXPECT_FALSE(set.groups[1].metrics[0].weight_by_size);
  EXPECT_TRUE(set.groups[1].metrics[1].weight_by_size);
}

TEST_F(TaskSets, RefusalsNamePlaceAndFix) {
  const auto refusal = [&](const std::string& text) { return testing::refusal_of_task(folder_ / "g.yaml", text); };
  EXPECT_THAT(refusal("group: g\ntask: [sience]\n"), HasSubstr("g.yaml: task: there is no task, group or tag sience"));
  EXPECT_THAT(refusal("group: g\ntask: [g]\n"), HasSubstr("groups are nested more than 16 deep"));
  EXPECT_THAT(refusal("group: g\ntask: []\n"), HasSubstr("the group g has no tasks"));
  put(folder_ / "a.yaml", small_task("same"));
  put(folder_ / "b.yaml", small_task("same"));
  EXPECT_THAT(test::message_of<DataError>([&] {
                read_tasks({folder_ / "a.yaml", folder_ / "b.yaml"});
              }),
              HasSubstr("the task same is in"));
  EXPECT_THAT(test::message_of<DataError>([&] { read_tasks({folder_ / "none"}); }), HasSubstr("there is no such file"));
  fs::create_directory(folder_ / "empty");
  EXPECT_THAT(test::message_of<DataError>([&] { read_tasks({folder_ / "empty"}); }), HasSubstr("has no tasks"));
}

}  // namespace
}  // namespace witan
