// Notices launchers that bind each process to fewer cores than are its share of the host: Open MPI's mpirun, for one,
// gives each of two processes one core, on which the threads of a rank, those that carry its messages and those of its
// GPU take turns.
#pragma once

#include <string>

#include "witan/base/files/file.h"
#include "witan/comm/processes/launch.h"

namespace witan {

struct CoreBinding {
  int own = 0;        // cores that this process may run on
  int host = 0;       // cores that it might: those of the host, or of the container or job that it is in
  int processes = 1;  // of the job, on this host
};

// Of this process. `cgroups`: where the kernel shows which cores a group of processes has; `group`: the file that names
// this process's.
CoreBinding core_binding(int processes, const fs::path& cgroups = "/sys/fs/cgroup",
                         const fs::path& group = "/proc/self/cgroup");

// A warning with the way out, where a process has less than its share; else empty.
std::string binding_warning(const CoreBinding& binding, const Launch& launch);

}  // namespace witan
