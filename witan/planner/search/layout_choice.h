// The layouts that a number of GPUs allows, which a search goes through.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "witan/train/config/config.h"

namespace witan {

// One layout: sizes of axes, sharding, recomputation, and micro-batch size.
struct LayoutChoice {
  int64_t tensor = 1, context = 1, pipeline = 1, virtual_stages = 1;
  int64_t expert = 1, expert_tensor = 1;
  Sharding sharding = Sharding::none;
  int64_t instances = 1;  // number of groups that each shard the state (num_distributed_optimizer_instances)
  Recompute recompute = Recompute::none;
  int64_t micro_batch_size = 1;
};

struct ChoiceLimits {
  int64_t gpus = 1, gpus_per_host = 8;
  bool keep_micro_batch_size = false;
  bool axes_alone = false;          // no sharding, no virtual stages, no more recomputation than configured
  std::set<std::string> held = {};  // keys of searched_keys() that keep the config's value
};

// The configuration keys that a search sets, without recompute_granularity, which it only increases.
std::span<const char* const> searched_keys();

// All combinations that a run of the config could try:
//   tensor          divisors of the GPUs within a host, since its collectives are not overlapped
//   context         divisors of the rest, up to 16; pipeline: divisors up to the number of layers
//   virtual stages  powers of two that divide a stage's layers evenly
//   expert          common divisors of a stage's ranks and the experts; expert tensor: 1, or equal to tensor
//   sharding        none, optimizer, gradients, parameters; parameters also within each host only (HSDP)
//   micro-batch     the config's size and its halves, or that size alone
//   recomputation   the config's, and more
// Keys in limits.held keep their one value, even if it cannot work. RunConfig::validate() still refuses some of these.
std::vector<LayoutChoice> layout_choices(const RunConfig& config, const ChoiceLimits& limits);

// The config with this layout on the same number of ranks; not resolved.
RunConfig with_layout(RunConfig config, const LayoutChoice& choice);

// mesh_text: "replicate=2,shard=8,tensor=4", the --mesh of a resolved config. rest_text: sharding and the rest, as in
// "optim_grads_params, 2 virtual stages, micro-batch 4, recompute full".
std::string mesh_text(const RunConfig& config);
std::string rest_text(const RunConfig& config);

}  // namespace witan
