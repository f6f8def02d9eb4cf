// A bias per expert, over rows grouped by expert. Throws ShapeError.
#pragma once

#include "witan/ops/experts/expert_replicas.h"

namespace witan::ops {

// y[i, first + j] + row_weight[i] bias[e,j] for the rows i of group e;  y [capacity, N], bias [E, M] of y's dtype with
// first + M <= N, row_weight [capacity] accumulator dtype, or undefined: 1. It is written over y, a result that nobody
// else holds: move y in. Rows outside the groups are undefined. With replicas there are groups of slots too.
Var grouped_bias(Tape& tape, Var y, const RowGroups& groups, const Var& bias, const Var& row_weight, int64_t first = 0,
                 const ExpertReplicas& replicas = {});

}  // namespace witan::ops
