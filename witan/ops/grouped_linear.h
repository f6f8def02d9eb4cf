// A linear map per expert, over rows grouped by expert. Throws ShapeError.
#pragma once

#include "witan/ops/expert_replicas.h"

namespace witan::ops {

// y[i,:] = w[e] rows[i,:] for the rows i of group e;  rows [capacity, K], w [E, N, K] -> [capacity, N].
// Rows outside the groups are undefined, in the output and in the gradient of `rows`. The groups must not change before
// the backward. With replicas there are groups of slots too, whose matrices are copied in forward and backward.
Var grouped_linear(Tape& tape, const Var& rows, const RowGroups& groups, const Var& w,
                   const ExpertReplicas& replicas = {});

// swiglu(grouped_linear(rows, groups, w), row_weight, &groups), to the bit, in one kernel where there is one:
// w [E, 2F, K], row_weight [capacity] or undefined -> [capacity, F]. Backward keeps what those two keep.
Var grouped_swiglu(Tape& tape, const Var& rows, const RowGroups& groups, const Var& w, const Var& row_weight,
                   const ExpertReplicas& replicas = {});

}  // namespace witan::ops
