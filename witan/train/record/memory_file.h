// What was live in a rank's memory when it ran out, or came to be more than planned: RUN/memory/rank-N.json; and when
// somebody asked (memory_request.h).
#pragma once

#include <string>

#include "witan/tensor/arena.h"
#include "witan/train/config/run_plan.h"
#include "witan/train/state/run_folder.h"

namespace witan {

// One JSON object, a block of memory a line (docs/cli.md).
std::string memory_json(int rank, const MemorySnapshot& snapshot);

// The same of an arena as it is now, in a step that was asked to show it: "why" is "asked", and there is no request.
std::string live_memory_json(int rank, int64_t step, const Arena& arena);

// From now on the arena's snapshots are written there; one that memory was refused for replaces one that was not
// planned. What cannot be written is left: the error that follows is the one to tell. The folder must outlive its use.
void write_snapshots(Arena& arena, const RunFolder& folder, const RunPlan& plan, int rank);

// Of the run that begins: what an earlier one has left.
void remove_snapshots(const RunFolder& folder);

}  // namespace witan
