// Plans in a fraction of their time, for searches that look at many: on fewer micro-batches, of fewer ranks.
#pragma once

#include <cstdint>

#include "witan/planner/plan.h"

namespace witan {

// Bytes of all ranks' arenas alone: the first rank of a stage stands for all of it, and of many micro-batches on a rank
// without a pipeline three for all, since those between the first and the last take what the second takes.
int64_t estimate_arena_bytes(const ResolvedConfig& config);

// Memory, work and traffic of the ranks that most depends on: the first one, and in a pipeline the first one of the
// last stage. With p stages 2 p micro-batches stand for all, without a pipeline 3: no more are in flight at once, and
// kernels and exchanges of a micro-batch are counted as often as there are more of them. It leaves out
// evaluations and samples.
Plan quick_plan(const ResolvedConfig& config);

}  // namespace witan
