// A linear map per expert, over rows grouped by expert. Throws ShapeError.
#pragma once

#include "witan/autograd/tape.h"
#include "witan/tensor/ragged.h"

namespace witan::ops {

// y[i,:] = w[e] rows[i,:] for the rows i of group e;  rows [capacity, K], w [E, N, K] -> [capacity, N].
// Rows outside the groups are undefined, in the output and in the gradient of `rows`. The groups must not change before
// the backward.
Var grouped_linear(Tape& tape, const Var& rows, const RowGroups& groups, const Var& w);

}  // namespace witan::ops
