// Tasks and groups of tasks, found in files and folders.
#pragma once

#include <string>
#include <vector>

#include "witan/tasks/task_config.h"

namespace witan {

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
