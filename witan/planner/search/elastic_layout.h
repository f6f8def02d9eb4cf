// Chooses the layout in which a run continues after some of its ranks are lost or have returned.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "witan/train/config/resolve.h"

namespace witan {

// The number of ranks that the run may have now.
struct RankLimits {
  int64_t least = 1, most = 1;
};

// Throws Error if a layout fails for another reason than its sizes, such as too much memory.
using LayoutCheck = std::function<void(const ResolvedConfig&)>;

// Changes the layout of `given` as little as possible so that it has a number of ranks within the limits, each a
// process of this host, and resolves it with `facts`, except for their `launched`. Model, global batch, micro-batches
// and the order of samples stay. These are tried in order, and the first that is valid and passes `check` is returned:
//   1. fewer data-parallel ranks: the most that divide the micro-batches
//   2. for each such number smaller expert_model_parallel_size, expert_tensor_parallel_size and
//      num_distributed_optimizer_instances, each a divisor of the given one
//   3. if none works, a smaller context_parallel_size, then pipeline_model_parallel_size, then
//      tensor_model_parallel_size: divisors as well, with the largest possible product
// Throws ConfigError with the reason of the last failure if none works.
ResolvedConfig elastic_layout(const RunConfig& given, const Facts& facts, const RankLimits& limits,
                              const LayoutCheck& check = {});

// The layout's keys as TOML: those in which a continued run may differ without changing its losses.
std::string layout_keys(RunConfig config);

}  // namespace witan
