// Collects the peak memory of all ranks' arenas for the report.
#pragma once

#include <vector>

#include "witan/comm/group.h"
#include "witan/report/events/events.h"
#include "witan/tensor/tensor.h"

namespace witan {

// Collective over the group, on a stream of the host: the peak of every rank's arena `own`, and that of each memory
// tag, in bytes, in the order of ranks.
std::vector<MemoryEvent> gather_memory(Stream& stream, Group& group, const Arena& own);

}  // namespace witan
