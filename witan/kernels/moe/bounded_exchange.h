// Rows that travel between ranks in parts of one size, whatever the counts: a part is what a rank has for another, of
// which the first rows are there and the rest is not. Nobody on the host has to know how many are (moe/dispatch.h).
#pragma once

#include "witan/kernels/common/launch.h"
#include "witan/tensor/ragged.h"

namespace witan::kernels {

// From the send order to parts of B rows for each of R ranks.  source [N] int64: the assignment of each send row, by
// rank;  counts [R] int64: rows for each rank, B at most  ->  parts [R B] int64: the assignment of each row, -1 where
// there is none;  slot [T K] int64, the send row of each assignment, becomes its row of the parts, and stays -1 where
// it has none.  Throws ShapeError, on the CPU, where a rank gets more than B.
void spread_to_parts(Stream& stream, const Tensor& slot, const Tensor& parts, const Tensor& source,
                     const Tensor& counts);
WITAN_KERNEL_TWINS(spread_to_parts)

// Where the rows of a pool have arrived, in parts of `part_rows` rows, one of each rank, each by expert.  groups, by
// source too: the pool's  ->  arrival [capacity] int64: the row of the parts that is in each row of the pool; undefined
// beyond the groups.
void find_in_parts(Stream& stream, const Tensor& arrival, const RowGroups& groups, int64_t part_rows);
WITAN_KERNEL_TWINS(find_in_parts)

}  // namespace witan::kernels
