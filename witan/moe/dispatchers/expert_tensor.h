// Experts whose matrices are divided among the ranks of the expert tensor axis, each of which needs all of their rows:
// the ranks' pools are gathered and merged by expert, and outputs are summed by a reduce-scatter.
#pragma once

#include "witan/moe/dispatchers/dispatch.h"

namespace witan {

// Immutable; shared by gathering, scattering and their backwards.
struct MergedPools {
  Group& group;      // the expert tensor axis
  RowGroups groups;  // all ranks' rows, by expert, then rank
  Tensor place;      // [n capacity] int64: the row of the gathered pools that merged row i is
};

// Merges the pools of map.capacity rows that every rank has. A collective.
MergedPools merge_pools(Stream& stream, const DispatchMap& map, Group& group);

// rows [capacity, D], row_weights [capacity] of each rank -> all ranks' [n capacity, D] and [n capacity], grouped by
// merged.groups
Dispatched gather_pools(Tape& tape, const Dispatched& own, const MergedPools& merged);
// The adjoint: y [n capacity, D], whose sum over ranks is wanted -> the sums of the rank's own rows [capacity, D]
Var scatter_sums(Tape& tape, const Var& y, const MergedPools& merged);

}  // namespace witan
