// Prints a layout as a page for people (the mesh, what is sharded, the groups of a rank, the placement of every
// parameter as a tree of modules, and every rank's coordinates and groups) and as JSON for programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "witan/train/run/resolve.h"

namespace witan {

// Parameters are shown as rank 0 holds them; layers with the same placements share their lines. Meshes are written as
// torch.distributed.device_mesh.DeviceMesh writes them: nested lists of ranks and the names of their dims. The page
// lists 64 ranks at most.
// `assumed_vocabulary`: as Plan has it.
std::string format_layout(const ResolvedConfig& config, std::optional<int64_t> assumed_vocabulary = {});

// One object: ranks, where there is one assumed_vocabulary, mesh and mesh_of_experts {axis: size}, sharded (text),
// groups_of_rank_0 [{axes, ranks}], groups [{axes, ranks: a nested list for each group over the axes}], coordinates
// [{axis: coordinate}] by rank, parameters [{name, shape, local_shape, placements {axis: kind}, sharded: which of
// values, gradients and optimizer, sharded_over: axes, local_elements}].
std::string layout_json(const ResolvedConfig& config, std::optional<int64_t> assumed_vocabulary = {});

}  // namespace witan
