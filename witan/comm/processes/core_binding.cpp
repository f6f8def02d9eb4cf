#include "witan/comm/processes/core_binding.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>

#include "witan/base/error.h"

namespace witan {
namespace {

// Of the mask of this process, on hosts with any number of cores; 0 where the system does not say.
int cores_of_mask() {
  for (int most = 1024; most <= 1 << 16; most *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask(CPU_ALLOC(static_cast<size_t>(most)),
                                                                [](cpu_set_t* set) { CPU_FREE(set); });
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(most));
    if (::sched_getaffinity(0, bytes, mask.get()) == 0) return CPU_COUNT_S(bytes, mask.get());
  }
  return 0;
}

// "0-3,8": 5; 0 for what is no such list.
int count_of_list(const std::string& list) {
  std::istringstream ranges(list);
  int count = 0;
  for (std::string range; std::getline(ranges, range, ',');) {
    std::istringstream ends(range);
    int first = 0, last = 0;
    char dash = 0;
    if (!(ends >> first)) return 0;
    last = ends >> dash >> last && dash == '-' ? last : first;
    count += std::max(last - first + 1, 0);
  }
  return count;
}

// The list in the file of this name, of the folder or of the next one around it that has one; 0: none has.
int cores_of_folder(const fs::path& root, const std::string& folder, const char* name) {
  for (fs::path path = root / folder;; path = path.parent_path()) {
    std::ifstream file(path / name);
    std::string list;
    if (std::getline(file, list))
      if (const int count = count_of_list(list); count > 0) return count;
    if (path == root || !path.has_relative_path()) return 0;
  }
}

// The cores of the group of processes that this one is in; 0: the system does not tell. Lines of `group` are "0::/PATH"
// in version 2 of cgroups, "N:cpuset:/PATH" in version 1 (cgroups(7)).
int cores_of_group(const fs::path& cgroups, const fs::path& group) {
  int cores = 0;
  std::ifstream lines(group);
  for (std::string line; cores == 0 && std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(":/");
    if (second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, std::max(second, first + 1) - first - 1);
    const std::string folder = line.substr(second + 2);
    if (first == second - 1) cores = cores_of_folder(cgroups, folder, "cpuset.cpus.effective");
    if (controllers == "cpuset") cores = cores_of_folder(cgroups / "cpuset", folder, "cpuset.cpus");
  }
  return cores;
}

}  // namespace

CoreBinding core_binding(int processes, const fs::path& cgroups, const fs::path& group) {
  CoreBinding binding;
  binding.processes = processes;
  binding.own = cores_of_mask();
  const int online = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)), granted = cores_of_group(cgroups, group);
  binding.host = granted > 0 ? std::min(granted, online) : online;
  return binding;
}

std::string binding_warning(const CoreBinding& binding, const Launch& launch) {
  const int share = binding.host / std::max(binding.processes, 1);
  if (binding.own == 0 || binding.own >= share) return "";
  return cat("warning: the launcher binds this process to ", binding.own, " of ", binding.host,
             " cores, though its share as one of ", binding.processes, " processes here is ", share,
             ": its threads take turns, which can make steps many times slower; ", launch.unbind);
}

}  // namespace witan
