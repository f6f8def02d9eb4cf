// The layout in which a run goes on when some of its ranks are lost, or when they are back.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "witan/train/run/resolve.h"

namespace witan {

// The ranks that a run may have now.
struct RankLimits {
  int64_t least = 1, most = 1;
};

// Throws Error where a layout does not do for another reason than its sizes: it takes too much memory.
using LayoutCheck = std::function<void(const ResolvedConfig&)>;

// The given configuration, with the layout changed as little as a number of ranks within the limits demands, each of
// them a process of this host; resolved by `facts`, but for their `launched`. Model, global batch, micro-batches and
// the order of samples stay. Tried in this order, and the first that is valid and passes `check` is taken:
//   1. fewer data-parallel ranks: the most that divide the micro-batches
//   2. for each number of them smaller expert_model_parallel_size, expert_tensor_parallel_size and
//      num_distributed_optimizer_instances, each a divisor of what was given
//   3. when none works, a smaller context_parallel_size, then pipeline_model_parallel_size, then
//      tensor_model_parallel_size: divisors too, the product as large as possible
// Throws ConfigError, with the reason for which the last one did not work, when none does.
ResolvedConfig elastic_layout(const RunConfig& given, const Facts& facts, const RankLimits& limits,
                              const LayoutCheck& check = {});

// The keys of a layout, as TOML: what one run of a model may have different from another to the same losses.
std::string layout_keys(RunConfig config);

}  // namespace witan
