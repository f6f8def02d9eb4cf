// A linear map per expert, over rows grouped by expert. Throws ShapeError.
#pragma once

#include <functional>

#include "witan/ops/experts/expert_replicas.h"

namespace witan::ops {

// y[i,:] = w[e] rows[i,:] for the rows i of group e;  rows [capacity, K], w [E, N, K] -> [capacity, N].
// Rows outside the groups are undefined, in the output and in the gradient of `rows`. The groups must not change before
// the backward. With replicas there are groups of slots too, whose matrices are copied in forward and backward.
Var grouped_linear(Tape& tape, const Var& rows, const RowGroups& groups, const Var& w,
                   const ExpertReplicas& replicas = {});

// The same, where forward(y) computes the output.
Var grouped_linear_computed_by(const std::function<void(const Tensor& y)>& forward, Tape& tape, const Var& rows,
                               const RowGroups& groups, const Var& w, const ExpertReplicas& replicas);

}  // namespace witan::ops
