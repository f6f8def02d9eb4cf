// `mesh = "replicate=2,shard=2,tensor=2"`: a layout given by the sizes of its axes (comm/mesh.h) instead of by
// Megatron-LM's keys.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "witan/parallel/config.h"

namespace witan {

// Sets the keys that config.mesh stands for, empties it, and returns their names; without a mesh it does nothing.
//   tensor, context, pipeline     their sizes, 1 if they are not named
//   replicate, shard              the number of ranks; shard > 1: a distributed optimizer, in `replicate` instances;
//                                 replicate > 1 alone: nothing is divided among them
//   expert, expert_tensor         their sizes if they are named
// `ranks` becomes the product of all but the last two. Throws ConfigError for an unknown axis (with a suggestion), an
// invalid size, a duplicate, and a key of `given` that contradicts the mesh; then the error names both. `given`: keys
// set in the same place as the mesh: in `file`, or by flags if that is empty. Keys set elsewhere are overridden by the
// mesh, or override it if they are set later.
std::set<std::string> expand_mesh(ParallelConfig& config, const std::set<std::string>& given,
                                  const std::string& file = "");

// The expert axis whose size this key gives, and which a mesh leaves alone unless it names it; "" for other keys.
std::string_view expert_axis_of(std::string_view key);

}  // namespace witan
