// Whether a run fits into a memory, and what would.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "witan/planner/plan.h"
#include "witan/train/run/config.h"

namespace witan {

// The keys in which two configurations differ, as flags that turn one into the other.
using Changes = std::vector<std::pair<std::string, std::string>>;  // key, value in the syntax of a flag

Changes changed_keys(RunConfig before, RunConfig now);
std::string flags_of(const Changes& changes);  // "--recompute-granularity full --ranks 1"

struct Alternative {
  ResolvedConfig config;
  Changes changes;
  bool same_result = true;  // the same training: what differs is how it is laid out and what is computed again
  int64_t needed_bytes = 0;

  std::string flags() const { return flags_of(changes); }
};

// The configuration nearest to this one of which a plan says that it fits into `bytes`. Tried in this order: what
// changes no result (recomputation; experts divided further; the optimizer, then parameters too, divided among ranks
// that hold the same; fewer ranks, and more), then what does, from the least on (a smaller micro_batch_size, a smaller
// seq_length), each with all of the former. With `options.spread` the number of ranks is given. Nothing when none of
// these fits.
std::optional<Alternative> nearest_fitting(const ResolvedConfig& config, int64_t bytes,
                                           const PlanOptions& options = {});

// Throws OutOfMemoryError, which says what is missing and the nearest configuration that fits, when the plan of this
// config takes more than `bytes` (Plan::needed_bytes); 0: unknown, and nothing is refused. `options`: those of the
// plan.
void require_fits(const ResolvedConfig& config, const Plan& plan, int64_t bytes, const PlanOptions& options = {});

}  // namespace witan
