// Experts whose matrices are divided among the ranks of the expert tensor axis, each of which needs all of their rows:
// the ranks' receive buffers are gathered and merged by expert, and outputs are summed by a reduce-scatter.
#pragma once

#include "witan/moe/dispatchers/dispatch.h"

namespace witan {

// Immutable; shared by gathering, scattering and their backwards.
struct MergedBuffers {
  Group& group;      // the expert tensor axis
  RowGroups groups;  // all ranks' rows, by expert, then rank
  Tensor place;      // [n capacity] int64: the row of the gathered buffers that merged row i is
};

// Merges the receive buffers of map.capacity rows that every rank has. A collective.
MergedBuffers merge_buffers(Stream& stream, const DispatchMap& map, Group& group);

// rows [capacity, D], row_weights [capacity] of each rank -> all ranks' [n capacity, D] and [n capacity], grouped by
// merged.groups
Dispatched gather_buffers(Tape& tape, const Dispatched& own, const MergedBuffers& merged);
// The adjoint: y [n capacity, D], whose sum over ranks is wanted -> the sums of the rank's own rows [capacity, D]
Var scatter_sums(Tape& tape, const Var& y, const MergedBuffers& merged);

}  // namespace witan
