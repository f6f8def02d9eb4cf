// How ranks fail together, so that none waits for one that gave up.
#pragma once

#include <functional>

#include "witan/comm/group.h"

namespace witan {

// Collective. Runs `body`, which must not communicate, on every rank. When it throws on any, every rank throws the
// error of the first such rank: its exit code, its message and " (rank R)". An IoError becomes a CheckpointError.
void together(Group& group, Stream& stream, const std::function<void()>& body);

}  // namespace witan
