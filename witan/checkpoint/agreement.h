// How ranks fail together, so that none waits for one that gave up; and texts between ranks. All calls are collective.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "witan/comm/group.h"

namespace witan {

// Runs `body`, which must not communicate, on every rank. When it throws on any, every rank throws the error of the
// first such rank: its exit code, its message and " (rank R)". An IoError becomes a CheckpointError.
void together(Group& group, Stream& stream, const std::function<void()>& body);

// The ranks' texts, by rank, on rank 0; nothing elsewhere.
std::vector<std::string> gather_texts(Group& group, Stream& stream, const std::string& text);

// The root's text.
std::string broadcast_text(Group& group, Stream& stream, const std::string& text, int root);

}  // namespace witan
