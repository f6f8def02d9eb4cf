// Makes a rank wait for a debugger before it starts (witan train --debug-rank).
#pragma once

#include <cstdio>
#include <string>

#include "witan/base/files/file.h"
#include "witan/comm/host_group.h"

namespace witan {

// The message to the user: the process and thread of the rank that calls it, how to attach gdb to it, and how to
// continue without.
std::string how_to_attach(int rank, int world_size, const fs::path& file);

// Writes the message to `out` and `file`, and waits until a debugger is attached to the calling thread, the file is
// removed, or a signal asks the run to stop. The deadlines of the other ranks are suspended meanwhile (World::hold).
// Throws AbortedError if another rank fails.
void wait_for_debugger(World& world, int rank, const fs::path& file, std::FILE* out);

}  // namespace witan
