// Whether a run fits into a memory, and what would.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "witan/planner/plan.h"

namespace witan {

struct Alternative {
  RunConfig config;
  std::vector<std::pair<std::string, std::string>> changes;  // key, value
  bool same_result = true;  // the same training: what differs is how it is laid out and what is computed again
  int64_t needed_bytes = 0;

  std::string flags() const;  // "--recompute-granularity full --ranks 1"
};

// The configuration nearest to this one of which a plan says that it fits into `bytes`. Tried in this order: what
// changes no result (recomputation; experts divided further; fewer ranks), then what does, from the least on (a smaller
// micro_batch_size, a smaller seq_length), each with all of the former. Nothing when none of these fits.
std::optional<Alternative> nearest_fitting(const RunConfig& config, int64_t bytes);

// Throws OutOfMemoryError, which says what is missing and the nearest configuration that fits, when the plan of this
// config takes more than `bytes` (Plan::needed_bytes); 0: unknown, and nothing is refused.
void require_fits(const RunConfig& config, const Plan& plan, int64_t bytes);

}  // namespace witan
