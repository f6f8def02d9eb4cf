// Formats a layout as a page for people (the mesh, what is sharded, the groups of a rank, the placement of every
// parameter as a tree of modules, and every rank's coordinates and groups) and as JSON for programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "witan/comm/placement.h"
#include "witan/parallel/layout.h"
#include "witan/tensor/shape.h"
#include "witan/train/config/resolve.h"

namespace witan {

// Shows parameters as rank 0 holds them; layers with the same placements share lines. Meshes are written as
// torch.distributed.device_mesh.DeviceMesh writes them: nested lists of ranks and the names of their dims. The page
// lists at most 64 ranks. `assumed_vocabulary`: see Plan.
std::string format_layout(const ResolvedConfig& config, std::optional<int64_t> assumed_vocabulary = {});

// One object: ranks, assumed_vocabulary if there is one, mesh and mesh_of_experts {axis: size}, sharded (text),
// groups_of_rank_0 [{axes, ranks}], groups [{axes, ranks: a nested list for each group over the axes}], coordinates
// [{axis: coordinate}] by rank, parameters [{name, shape, local_shape, placements {axis: kind}, sharded: which of
// values, gradients and optimizer, sharded_over: axes, local_elements}].
std::string layout_json(const ResolvedConfig& config, std::optional<int64_t> assumed_vocabulary = {});

// "FSDP (optim_grads_params): values, gradients and optimizer are sharded over shard (4 ranks), for experts over
// expert_shard (2)"; "" if nothing is sharded.
std::string sharding_text(const RunConfig& config, const Layout& layout);

// The sharded kinds of state, {"values", "gradients", "optimizer"} or the last of them, of experts or of all other
// parameters; empty if nothing is sharded.
std::vector<std::string> sharded_state(const Layout& layout, bool experts);

// The placement of a parameter on rank 0.
struct HeldParameter {
  std::string name;
  bool expert = false;
  Shape global, local;  // `local`: the shape that the rank computes with
  std::vector<std::pair<Axis, Placement>>
      placements;              // axes with more than one rank, without `owners` if values are sharded
  Axes owners;                 // axes over which sharded_state() is sharded in a flat buffer; empty: not sharded
  int64_t local_elements = 0;  // elements of `local` in the rank's own shard
};
std::vector<HeldParameter> held_parameters(const ResolvedConfig& config, const Layout& layout);

}  // namespace witan
