// The GPUs that are at hand, as a cluster of one host.
#pragma once

#include "witan/planner/speeds/ceilings.h"
#include "witan/planner/speeds/cluster.h"

namespace witan {

// Of ceilings that were measured on GPUs. What was not measured, connections and memory, is that of the model with
// their name; a GPU that is no known model is taken to be one whose figures lie by the measured ones as an H100's do.
Cluster host_of(const Ceilings& ceilings);

// The measured speeds; of ceilings without (they are of an older file) the typical ones.
GpuSpeeds speeds_of(const Ceilings& ceilings);

}  // namespace witan
