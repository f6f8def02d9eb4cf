// Whole SwiGLU experts: two linear maps per expert with the activation between them. Throws ShapeError.
#pragma once

#include "witan/ops/experts/expert_replicas.h"
#include "witan/ops/experts/grouped_linear.h"

namespace witan::ops {

struct SwigluExperts {
  Var first, second;           // [E, 2F, D], [E, D, F]
  bool rematerialise = false;  // backward computes the activations again
};

// grouped_linear(swiglu(grouped_linear(rows, groups, first), row_weight, &groups), groups, second), to the bit but for
// the order in which a GPU sums the gradient of row_weight. The activation is computed by the kernel of the first
// product, and its gradient by that of the second one's backward where there is such a kernel; the gradient of the
// activations has no memory of its own.
// rows [capacity, D], row_weight [capacity] accumulator dtype, or undefined -> [capacity, D]
Var swiglu_experts(Tape& tape, const Var& rows, const RowGroups& groups, const Var& row_weight,
                   const SwigluExperts& experts, const ExpertReplicas& replicas = {});

// The same with gathered_linear and summed_linear, of rows that are those of tokens.
// x [T, D] -> [T, D]
Var swiglu_experts(Tape& tape, const Var& x, const TokenRows& tokens, const RowGroups& groups, const Var& row_weight,
                   const SwigluExperts& experts);

}  // namespace witan::ops
