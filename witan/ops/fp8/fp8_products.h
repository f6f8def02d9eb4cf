// Linear maps and whole SwiGLU experts with operands in 8 bits. Throws ShapeError.
#pragma once

#include <memory>

#include "witan/autograd/tape.h"
#include "witan/ops/experts/grouped_linear.h"
#include "witan/ops/fp8/fp8_quantiser.h"
#include "witan/tensor/ragged.h"

namespace witan::ops {

struct Fp8Experts {
  Var first, second;                                                  // [E, 2F, D], [E, D, F]
  std::shared_ptr<const Fp8Quantiser> of_first = {}, of_second = {};  // as fp8_grouped_linear() has it
  bool rematerialise = false;                                         // the backward recomputes the activations
};

// fp8_grouped_linear(swiglu(fp8_grouped_linear(rows, groups, first), row_weight, &groups), groups, second), with the
// same bits except for the order in which the gradient of row_weight is summed. Activations and their gradients pass
// between the products in 8 bits only, by rows and by columns: with block scales they are never in memory in wider
// dtypes. rows [capacity, D], row_weight [capacity] accumulator dtype, or undefined -> [capacity, D]
Var fp8_experts(Tape& tape, const Var& rows, const RowGroups& groups, const Var& row_weight, const Fp8Experts& experts);

// Takes rows of tokens and sums them for each token in the order of k, with the bits of fp8_experts() on copies
// of them. Tokens and the gradient of the sum are quantised in place, without a bfloat16 row for each assignment, and
// nothing of the tokens' width is kept for each assignment.
// x [T, D] -> [T, D]
Var fp8_experts(Tape& tape, const Var& x, const TokenRows& tokens, const RowGroups& groups, const Var& row_weight,
                const Fp8Experts& experts);

// linear() and grouped_linear() with operands in 8 bits (kernels/fp8/fp8.h), forward and backward; inputs, weights,
// outputs and gradients keep their dtypes. Gradients ignore rounding (straight-through). Backward keeps a transposed
// copy of the rows in 8 bits, not the rows. `quantiser` says how operands are scaled; null: blockwise in e4m3, with
// copies of w made for each use.

// y = x w^T;  x [.., K], w [N, K] -> [.., N];  K and N are multiples of kernels::kFp8Multiple.
Var fp8_linear(Tape& tape, const Var& x, const Var& w, const std::shared_ptr<const Fp8Quantiser>& quantiser = nullptr);

// y[i,:] = w[e] rows[i,:], as grouped_linear() has it; K and N as above.
Var fp8_grouped_linear(Tape& tape, const Var& rows, const RowGroups& groups, const Var& w,
                       const std::shared_ptr<const Fp8Quantiser>& quantiser = nullptr);

}  // namespace witan::ops
