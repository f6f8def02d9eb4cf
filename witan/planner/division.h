// What ranks that hold the same parameters divide among them, and what a rank is left with, for people and programs.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "witan/comm/placement.h"
#include "witan/parallel/layout.h"
#include "witan/tensor/shape.h"
#include "witan/train/run/resolve.h"

namespace witan {

// "FSDP (optim_grads_params): values, gradients and optimizer are divided over shard (4 ranks), for experts over
// expert_shard (2)"; of nothing that is divided "".
std::string division_text(const RunConfig& config, const Layout& layout);

// {"values", "gradients", "optimizer"}, or the last of them, of experts or all others; empty where ranks divide
// nothing.
std::vector<std::string> divided_things(const Layout& layout, bool experts);

// A parameter as rank 0 holds it.
struct HeldParameter {
  std::string name;
  bool expert = false;
  Shape global, local;                                 // the latter is what it computes with
  std::vector<std::pair<Axis, Placement>> placements;  // axes with more than one rank, but for those of `owners`
                                                       // where values are divided
  Axes owners;       // over which divided_things() are divided, whatever dim that cuts; empty: not
  int64_t kept = 0;  // elements of local that are its own part of them
};
std::vector<HeldParameter> held_parameters(const ResolvedConfig& config, const Layout& layout);

}  // namespace witan
