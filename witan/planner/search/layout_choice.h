// The layouts that a number of GPUs allows: what a search goes through.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "witan/train/run/config.h"

namespace witan {

// One way to run a model: the sizes of axes, what is divided further, what is computed again, and how much at a time.
struct LayoutChoice {
  int64_t tensor = 1, context = 1, pipeline = 1, virtual_stages = 1;
  int64_t expert = 1, expert_tensor = 1;
  Sharding sharding = Sharding::none;
  int64_t instances = 1;  // groups of ranks that each divide what sharding says
  Recompute recompute = Recompute::none;
  int64_t micro_batch_size = 1;
};

struct ChoiceLimits {
  int64_t gpus = 1, gpus_per_host = 8;
  bool keep_micro_batch_size = false;
  bool axes_alone = false;  // nothing divided further, no virtual stages, no more recomputation than is asked for
  std::set<std::string> held = {};  // of searched_keys(): every layout has what the config says of these
};

// The keys of a configuration that a search sets, but for recompute_granularity, of which it tries more.
std::span<const char* const> searched_keys();

// Every combination of
//   tensor          divisors of the GPUs up to a host's: its exchanges are waited for
//   context         divisors, up to 16, of what is left; pipeline: divisors, up to the layers
//   virtual stages  powers of two that divide a stage's layers evenly
//   expert          divisors of a stage's ranks and the experts; expert tensor: 1, or as tensor
//   sharding        none, the optimizer, gradients, parameters; of parameters also once in each host (HSDP)
//   micro-batches   the config's size and its halves; or its own alone
//   recomputation   what the config asks for, and more
// that a run of the config could try; what is held has its one value, whether it can be or not. RunConfig::validate()
// refuses some still.
std::vector<LayoutChoice> layout_choices(const RunConfig& config, const ChoiceLimits& limits);

// The config so laid out on as many ranks; not resolved.
RunConfig with_layout(RunConfig config, const LayoutChoice& choice);

// "replicate=2,shard=8,tensor=4", the --mesh of a resolved config; and whether parameters are divided and the like:
// "optim_grads_params, 2 virtual stages, micro-batch 4, recompute full".
std::string mesh_text(const RunConfig& config);
std::string rest_text(const RunConfig& config);

}  // namespace witan
