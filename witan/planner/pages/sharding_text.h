// The state that data-parallel ranks shard (ZeRO, FSDP) and what is left on a rank, for people and programs.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "witan/comm/placement.h"
#include "witan/parallel/layout.h"
#include "witan/tensor/shape.h"
#include "witan/train/run/resolve.h"

namespace witan {

// "FSDP (optim_grads_params): values, gradients and optimizer are sharded over shard (4 ranks), for experts over
// expert_shard (2)"; "" if nothing is sharded.
std::string sharding_text(const RunConfig& config, const Layout& layout);

// {"values", "gradients", "optimizer"}, or the last of them, of experts or of all other parameters; empty if nothing is
// sharded.
std::vector<std::string> sharded_state(const Layout& layout, bool experts);

// The placement of a parameter on rank 0.
struct HeldParameter {
  std::string name;
  bool expert = false;
  Shape global, local;                                 // `local` is the shape that the rank computes with
  std::vector<std::pair<Axis, Placement>> placements;  // axes with more than one rank, but for those of `owners`
                                                       // where values are divided
  Axes owners;                 // over which sharded_state() are sharded, in a flat buffer; empty: not sharded
  int64_t local_elements = 0;  // elements of `local` in the rank's own shard
};
std::vector<HeldParameter> held_parameters(const ResolvedConfig& config, const Layout& layout);

}  // namespace witan
