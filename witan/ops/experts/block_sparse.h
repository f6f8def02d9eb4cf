// A linear map per expert as products with a block-sparse matrix (kernels/grouped/block_sparse.h). Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/kernels/grouped/block_sparse.h"

namespace witan::ops {

// The topology of these groups in a pool of so many rows; it is made once for all products with them.
kernels::BlockTopology block_topology(Stream& stream, const RowGroups& groups, int64_t capacity);

// As grouped_linear(): y[i,:] = w[e] rows[i,:] for the rows i of group e;  rows [capacity, K], w [E, N, K] ->
// [capacity, N].
Var block_sparse_linear(Tape& tape, const Var& rows, const kernels::BlockTopology& topology, const Var& w);

}  // namespace witan::ops
