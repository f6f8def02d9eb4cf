// `mesh = "replicate=2,shard=2,tensor=2"`: a layout given by the sizes of its axes (comm/mesh.h) instead of by
// Megatron-LM's keys.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "witan/parallel/config.h"

namespace witan {

// Sets the keys that config.mesh stands for, empties it, and returns their names; without a mesh it does nothing.
//   tensor, context, pipeline     their sizes, 1 where they are not named
//   replicate, shard              the number of ranks; shard > 1: a distributed optimizer, in `replicate` instances;
//                                 replicate > 1 alone: nothing is divided among them
//   expert, expert_tensor         their sizes where they are named
// `ranks` becomes the product of all but the last two. Throws ConfigError for what is no axis (with a suggestion), no
// size or said twice, and where a key of `given` says otherwise than the mesh: then it names both. `given`: keys set
// where the mesh is, in `file`, or by flags where that is empty. What was set elsewhere is beaten by the mesh, or beats
// it by being set later.
std::set<std::string> expand_mesh(ParallelConfig& config, const std::set<std::string>& given,
                                  const std::string& file = "");

// The axis of experts whose size the key is, which a mesh leaves alone unless it names it; "" for other keys.
std::string_view expert_axis_of(std::string_view key);

}  // namespace witan
