#include "witan/tasks/task_set.h"

#include <gmock/gmock.h>

#include "tasks/tasks_support.h"

namespace witan {
namespace {

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

TEST_F(TaskSets, AFolderIsAllItsTasksButParts) {
  put(folder_ / "b.yaml", small_task("b"));
  put(folder_ / "in/a.yml", small_task("a"));
  put(folder_ / "_part.yaml", "colour: red\n");
  put(folder_ / "rows.jsonl", "{}\n");
  EXPECT_THAT(names(read_tasks({folder_.path()})), ElementsAre("b", "a"));
  EXPECT_THAT(names(read_tasks({folder_ / "in/a.yml", folder_ / "b.yaml"})), ElementsAre("a", "b"));
}

TEST_F(TaskSets, AGroupNamesTasksGroupsAndTags) {
  put(folder_ / "a.yaml", small_task("a", "tag: some\n"));
  put(folder_ / "b.yaml", small_task("b", "tag: [some, other]\n"));
  put(folder_ / "c.yaml", small_task("c"));
  put(folder_ / "code.yaml", "task: !function f\n");  // nobody asks for it
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

TEST_F(TaskSets, RefusalsSayWhereAndWhatToDo) {
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
