// A layout as a page for people: the mesh, what is divided, the groups of a rank, and how every parameter is held, as a
// tree of modules. And as JSON for programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "witan/train/run/config.h"

namespace witan {

// Of rank 0. Layers that are held alike share their lines. The config must be resolved and valid.
// `assumed_vocabulary`: as Plan has it.
std::string format_layout(const RunConfig& config, std::optional<int64_t> assumed_vocabulary = {});

// One object: ranks, where there is one assumed_vocabulary, mesh and mesh_of_experts {axis: size}, divided (words),
// groups_of_rank_0 [{axes, ranks}], parameters [{name, shape, local_shape, placements {axis: kind}, divided: things,
// divided_over: axes, kept_elements}].
std::string layout_json(const RunConfig& config, std::optional<int64_t> assumed_vocabulary = {});

}  // namespace witan
