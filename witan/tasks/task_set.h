// Tasks and groups of tasks, found in files and folders.
#pragma once

#include <string>
#include <vector>

#include "witan/tasks/task_config.h"

namespace witan {

struct GroupMetric {
  std::string metric;
  bool weight_by_size = true;  // by rows; else each task counts as much as another
};

struct GroupConfig {
  std::string name;
  std::vector<std::string> tasks;    // names of all tasks in it, those of groups within it among them
  std::vector<GroupMetric> metrics;  // of the group as a whole; none: it is a list of tasks
};

struct TaskSet {
  std::vector<TaskConfig> tasks;  // each name once
  std::vector<GroupConfig> groups;
};

// Of files, and of folders: all files in .yaml or .yml in them, but those whose names begin with "_", which others
// include. What a group names (tasks, groups, tags of tasks) is looked for in the folder that the group's file lies in.
// Throws DataError naming the file and the way out; IoError.
TaskSet read_tasks(const std::vector<fs::path>& paths);

}  // namespace witan
