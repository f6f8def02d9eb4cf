// Collective error handling, so that no rank waits for one that has failed. All calls are collective.
#pragma once

#include <functional>
#include <string>

#include "witan/comm/deadline.h"
#include "witan/comm/group.h"

namespace witan {

// Runs `body`, which must not communicate, on every rank. If it throws on any rank, every rank throws the error of the
// first such rank: with its exit code, its message and " (rank R)". An IoError becomes a CheckpointError.
void run_collectively(Group& group, Stream& stream, const std::function<void()>& body);

// For a DeadlineScope around ranks' parts of a checkpoint, which may take one rank's disk much longer than the others'.
// `doing` is what they do, for the error: "save step 4 to FOLDER".
CallDeadline checkpoint_deadline(double seconds, const std::string& doing);

}  // namespace witan
