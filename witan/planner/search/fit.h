// Checks whether a run fits into memory, and finds the nearest configuration that does.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "witan/planner/plan.h"
#include "witan/train/config/config.h"

namespace witan {

// Keys that differ between two configurations, as flags that turn one into the other.
using Changes = std::vector<std::pair<std::string, std::string>>;  // key, and value as a flag takes it

Changes changed_keys(RunConfig before, RunConfig now);
std::string flags_of(const Changes& changes);  // "--recompute-granularity full --ranks 1"

struct Alternative {
  ResolvedConfig config;
  Changes changes;
  bool same_result = true;  // the same training; only layout and recomputation differ
  int64_t needed_bytes = 0;

  std::string flags() const { return flags_of(changes); }
};

// The nearest configuration whose plan fits into `bytes`, or nullopt. First come changes that keep the result
// (recomputation; more expert parallelism; sharding the optimizer, then parameters too; fewer ranks, then more), then
// changes that do not, the least first (a smaller micro_batch_size, then a smaller seq_length), each combined with all
// of the former. With `options.spread` the number of ranks is fixed.
std::optional<Alternative> nearest_fitting(const ResolvedConfig& config, int64_t bytes,
                                           const PlanOptions& options = {});

// Throws OutOfMemoryError if the plan of a run on GPUs keeps activations on the host, which has only `bytes` for the
// process; 0: unknown.
void require_host_fits(const Plan& plan, int64_t bytes);

// Throws OutOfMemoryError if the plan of this config needs more than `bytes` (Plan::needed_bytes); the message states
// the shortfall and the nearest configuration that fits. `bytes` = 0: unknown, and nothing is refused. `options`: those
// of the plan.
void require_fits(const ResolvedConfig& config, const Plan& plan, int64_t bytes, const PlanOptions& options = {});

}  // namespace witan
