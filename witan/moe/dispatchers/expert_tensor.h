// Experts whose matrices are divided among ranks, which all need all of their rows: the pools of the ranks are
// gathered, merged by expert, and what the ranks make of them, summands, is summed and dealt out again.
#pragma once

#include "witan/moe/dispatchers/dispatch.h"

namespace witan {

// Immutable; shared by gathering, scattering and their backwards.
struct MergedPools {
  Group& group;      // the expert tensor axis
  RowGroups groups;  // of all ranks' rows, by expert, then rank
  Tensor place;      // [n capacity] int64: where row i of them stands in the gathered pools
};

// Of the pools that `map` says, of `capacity` rows on every rank. A collective.
MergedPools merge_pools(Stream& stream, const DispatchMap& map, Group& group);

// rows [capacity, D], row_weights [capacity] of each rank -> those of all, [n capacity, D] and [n capacity], grouped as
// merged.groups says
Dispatched gather_pools(Tape& tape, const Dispatched& own, const MergedPools& merged);
// The adjoint: y [n capacity, D], a summand of every rank -> the sums of the rank's own rows [capacity, D]
Var scatter_sums(Tape& tape, const Var& y, const MergedPools& merged);

}  // namespace witan
