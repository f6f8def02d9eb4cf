// Makes a rank wait for a debugger before it starts (witan train --debug-rank).
#pragma once

#include <cstdio>
#include <string>

#include "witan/base/files/file.h"
#include "witan/comm/host_group.h"

namespace witan {

// What a person is told: which process and thread the caller, the rank, is, how gdb is attached to it, and how it goes
// on without.
std::string how_to_attach(int rank, int world_size, const fs::path& file);

// Says so on `out` and in `file`, and waits until a debugger is attached to the calling thread, the file is gone, or a
// signal asks the run to stop. The deadlines of the other ranks do not run meanwhile (World::hold). Throws AbortedError
// when another rank fails.
void wait_for_debugger(World& world, int rank, const fs::path& file, std::FILE* out);

}  // namespace witan
